"""Rows that are added after the first layers change what transformers' layers would compute in the same way."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from mmserve.checkpoint.load import load
from mmserve.model_backend.attention.interface import AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_decoder
from mmserve.model_backend.models.interface import DeepStackRows
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.platforms.reference import TorchPlatform
from tests.fakes.models.checkpoints import make_llama
from tests.unit.model_backend.platforms.cpu.test_attention import BLOCK, step_of

HIDDEN, TOKENS, ROWS = 128, 40, (3, 4, 5, 20)
LIMITS = StepLimits(max_tokens=100, max_seqs=2, max_blocks=8, block_tokens=BLOCK)


def expected(directory: Path, ids: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Logits [T, vocab] of transformers with ``values`` added to the output of the first layers."""
    model = transformers.LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32)
    for layer, added in zip(model.model.layers, values, strict=False):

        def add(module: Any, args: Any, output: torch.Tensor, added: torch.Tensor = added) -> torch.Tensor:
            output = output.clone()
            output[0, list(ROWS)] += added
            return output

        layer.register_forward_hook(add)
    return model(ids[None]).logits[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [CpuPlatform, partial(TorchPlatform, torch.device("cpu"))])
@torch.inference_mode()
def test_rows_are_added_after_the_first_layers(tmp_path: Path, make: Callable[[torch.dtype], Platform]) -> None:
    platform = make(torch.float32)
    directory = make_llama(tmp_path, hidden_size=HIDDEN, num_hidden_layers=3)
    spec, step = load(directory), step_of([(0, TOKENS)])
    attention = platform.attention(AttentionSpec.of(spec.text, TpGroup()), torch.float32)
    model = load_decoder(spec, platform, attention, TpGroup(), "none", lambda done, total, unit: None)
    ids, values = torch.arange(TOKENS) + 5, torch.randn(2, len(ROWS), HIDDEN)
    shape = attention.kv_shape(int(step.block_tables.max()) + 1, BLOCK)
    outputs = platform.executor(model, LIMITS).forward(
        model.embed(ids),
        torch.arange(TOKENS)[None],
        torch.zeros(3, *shape),
        attention.builder(LIMITS).build(step),
        torch.arange(TOKENS),
        DeepStackRows(torch.tensor(ROWS), values),
    )
    torch.testing.assert_close(model.logits(outputs), expected(directory, ids, values), rtol=1e-4, atol=1e-4)
