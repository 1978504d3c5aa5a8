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
from tests.fakes.formats.quantized import dequantized, round_text
from tests.fakes.models.checkpoints import TEXT_FAMILIES, VOCAB, make_llama, make_llava, make_text
from tests.fakes.models.picture_families import QUANTIZABLE
from tests.fakes.ranks.engine import Driver, make_runner

# Only the compiled kernels compute with quantized weights; test_packing checks that they are refused without. With a
# compiler, kernels that cannot be used are failures here, not skips.
pytestmark = pytest.mark.skipif(
    not compiler.compilers(), reason="no C++ compiler on this machine, so no quantized weights either"
)
SHAPE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "vocab_size": 270}
"""The vocabulary is padded."""
CHANGES: dict[str, dict[str, Any]] = {"qwen3_moe": {"moe_intermediate_size": 32}, "phi3": {"hidden_size": 128}}
"""Phi-3's heads are as wide as its hidden size says."""
TOWER = ("vision_tower.", "multi_modal_projector.")
"""Stay as they are, as the routers of experts do."""


PROMPTS = [[(7 * i + 11 * n) % (VOCAB - 4) + 4 for i in range(length)] for n, length in enumerate((1, 5, 33, 70))]
NUM_TOKENS = 12


def expected(model: Any, form: str) -> list[list[int]]:
    """Of a model of transformers, whose text's weights are rounded."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and not name.endswith("mlp.gate.weight") and not any(part in name for part in TOWER):
                table = "embed" in name or "lm_head" in name
                for matrix in weight if weight.dim() == 3 else [weight]:  # experts are stacked
                    matrix.copy_(dequantized(matrix.data, "int8" if table else form))
    return [generated(model, torch.tensor([prompt])) for prompt in PROMPTS]


def generated(model: Any, ids: torch.Tensor) -> list[int]:
    """As far as no two tokens are about equally likely: the kernels round inputs to 16 bits."""
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NUM_TOKENS,
        eos_token_id=-1,
        output_logits=True,
        return_dict_in_generate=True,
    )
    first, second = torch.cat(out.logits).topk(2).values.T
    sure = int((first - second > 1e-3).long().cumprod(0).sum())
    found: list[int] = out.sequences[0, ids.shape[1] :][:sure].tolist()
    return found


def same(written: list[list[int]], sure: list[list[int]]) -> bool:
    """True if all that is sure, most of the tokens, was written."""
    assert sum(map(len, sure)) > len(PROMPTS) * NUM_TOKENS / 2
    return [tokens[: len(each)] for tokens, each in zip(written, sure, strict=True)] == sure


def written(directory: Path, form: Any) -> list[list[int]]:
    config = Config(model=str(directory), max_num_seqs=8, quantization=form)
    driver = Driver(make_runner(directory, config=config), chunk=20)
    sequences = [driver.add(slot, prompt) for slot, prompt in enumerate(PROMPTS)]
    driver.run(NUM_TOKENS)
    return [sequence.output[:NUM_TOKENS] for sequence in sequences]


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("family", ["llama", *TEXT_FAMILIES])
def test_tokens_equal_transformers_with_the_rounded_weights(tmp_path: Path, family: str, form: Any) -> None:
    directory = make_text(tmp_path, family, tie_word_embeddings=True, **(SHAPE | CHANGES.get(family, {})))
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    assert same(written(directory, form), expected(model, form))


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_the_text_behind_a_tower(tmp_path: Path, form: Any) -> None:
    directory = make_llava(tmp_path, text=SHAPE | {"tie_word_embeddings": True})
    model = transformers.LlavaForConditionalGeneration.from_pretrained(directory, dtype=torch.float32)
    assert same(written(directory, form), expected(model, form))


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("family", QUANTIZABLE)
def test_the_text_behind_each_tower(tmp_path: Path, family: str, form: Any) -> None:
    directory = QUANTIZABLE[family](tmp_path / "whole")
    rounded = round_text(directory, tmp_path / "rounded", form)
    model = transformers.AutoModelForImageTextToText.from_pretrained(rounded, dtype=torch.float32)
    assert same(written(directory, form), [generated(model, torch.tensor([prompt])) for prompt in PROMPTS])


def test_layers_of_other_sizes_are_refused(tmp_path: Path) -> None:
    directory = make_llama(tmp_path, **{**SHAPE, "intermediate_size": 80})
    with pytest.raises(StartupError, match="not 64 and 80"):
        make_runner(directory, config=Config(model=str(directory), quantization="int4"))
