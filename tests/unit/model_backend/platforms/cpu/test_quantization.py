"""A quantized model writes the tokens that transformers writes with the same rounded weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mmserve.config.config import Config
from mmserve.model_backend.platforms.cpu.library import compiler
from mmserve.runtime.errors import StartupError
from tests.fakes.checkpoints import TEXT_FAMILIES, VOCAB, make_llama, make_text
from tests.fakes.engine import Driver, make_runner
from tests.fakes.quantized import dequantized

# Only the compiled kernels compute with quantized weights; test_packing checks that they are refused without. With a
# compiler, kernels that cannot be used are failures here, not skips.
pytestmark = pytest.mark.skipif(
    not compiler.compilers(), reason="no C++ compiler on this machine, so no quantized weights either"
)
SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "vocab_size": 272}
CHANGES: dict[str, dict[str, Any]] = {"qwen3_moe": {"moe_intermediate_size": 32}, "phi3": {"hidden_size": 128}}
"""Phi-3's heads are as wide as its hidden size says."""


def expected(directory: Path, form: str, prompt: list[int], num_tokens: int) -> list[int]:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and not name.endswith("mlp.gate.weight"):  # routers stay as they are
                table = "embed" in name or "lm_head" in name
                for matrix in weight if weight.dim() == 3 else [weight]:  # experts are stacked
                    matrix.copy_(dequantized(matrix.data, "int8" if table else form))
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens, eos_token_id=-1
    )
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", *TEXT_FAMILIES])
def test_tokens_equal_transformers_with_the_rounded_weights(tmp_path: Path, family: str, form: Any) -> None:
    directory = make_text(tmp_path, family, tie_word_embeddings=True, **(SHAPE | CHANGES.get(family, {})))
    config = Config(model=str(directory), max_num_seqs=8, quantization=form)
    driver = Driver(make_runner(directory, config=config), chunk=20)
    prompts = [[(7 * i + 11 * n) % (VOCAB - 4) + 4 for i in range(length)] for n, length in enumerate((1, 5, 33, 70))]
    sequences = [driver.add(slot, prompt) for slot, prompt in enumerate(prompts)]
    driver.run(12)
    for sequence, prompt in zip(sequences, prompts, strict=True):
        assert sequence.output[:12] == expected(directory, form, prompt, 12)


def test_layers_of_other_sizes_are_refused(tmp_path: Path) -> None:
    directory = make_llama(tmp_path, **{**SHAPE, "intermediate_size": 80})
    with pytest.raises(StartupError, match="not 64 and 80"):
        make_runner(directory, config=Config(model=str(directory), quantization="int4"))
