"""Steps of few rows, which a team of threads computes, give the bits of their layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from mmserve.checkpoint.config.rope_config import for_context
from mmserve.checkpoint.load import load
from mmserve.model_backend.attention.interface import AttentionSpec, StepLimits
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.load import load_decoder
from mmserve.model_backend.models.interface import DecoderModel, DeepStackRows
from mmserve.model_backend.platforms.cpu.attention import PagedCpuAttention
from mmserve.model_backend.platforms.cpu.decoder import CompiledDecoder
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.cpu.threads import set_threads
from tests.fakes.models.checkpoints import TEXT_FAMILIES, make_text
from tests.unit.model_backend.platforms.cpu.kernels import kernels, needs_compiler, random
from tests.unit.model_backend.platforms.cpu.test_attention import BLOCK, step_of

pytestmark = needs_compiler
LONG = 1_100
"""Tokens of a context that has two segments."""
LIMITS = StepLimits(max_tokens=8, max_seqs=2, max_blocks=LONG // BLOCK + 2, block_tokens=BLOCK)
HIDDEN = 128


class Step:
    """One step of a tiny model of a family, computed by a team and layer by layer."""

    def __init__(self, path: Path, family: str, chunks: list[tuple[int, int]], quantization: str = "none") -> None:
        spec = load(make_text(path, family, hidden_size=HIDDEN))
        spec = replace(spec, text=for_context(spec.text, 256))
        platform = CpuPlatform(torch.bfloat16)
        attention = platform.attention(AttentionSpec.of(spec.text, TpGroup()), torch.bfloat16)
        assert isinstance(attention, PagedCpuAttention)
        self.layers = load_decoder(spec, platform, attention, TpGroup(), quantization, lambda done, total, unit: None)
        team = platform.executor(self.layers, LIMITS)
        assert isinstance(team, CompiledDecoder)
        self.team = team
        step = step_of(chunks)
        self._metadata = attention.builder(LIMITS).build(step)
        self._positions = torch.tensor([[at for start, count in chunks for at in range(start, start + count)]])
        shape = attention.kv_shape(int(step.block_tables.max()) + 1, BLOCK)
        self._cache = random(spec.text.num_layers, *shape, seed=1).to(torch.bfloat16)

    @torch.inference_mode()
    def run(
        self, executor: CompiledDecoder | DecoderModel, wanted: list[int], deepstack: DeepStackRows | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The hidden states of the wanted rows, and the KV cache afterwards."""
        hidden, cache = random(self._positions.shape[1], HIDDEN), self._cache.clone()
        rows = torch.tensor(wanted, dtype=torch.int64)
        return executor.forward(hidden, self._positions, cache, self._metadata, rows, deepstack).clone(), cache


def same(a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


@pytest.mark.parametrize("chunks", [[(LONG, 1)], [(LONG, 1), (40, 1)], [(70, 3), (40, 2)]], ids=str)
@pytest.mark.parametrize("family", ["llama", *(name for name in TEXT_FAMILIES if name != "qwen3_moe")])
def test_few_rows_give_the_bits_of_the_layers(tmp_path: Path, family: str, chunks: list[tuple[int, int]]) -> None:
    step = Step(tmp_path, family, chunks)
    kernels()  # with three threads
    rows = sum(count for _, count in chunks)
    for wanted in (list(range(rows)), [rows - 1], []):
        assert same(step.run(step.team, wanted), step.run(step.layers, wanted))


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_quantized_matrices(tmp_path: Path, quantization: str) -> None:
    step = Step(tmp_path, "llama", [(40, 1), (70, 1)], quantization)
    kernels()
    assert same(step.run(step.team, [0, 1]), step.run(step.layers, [0, 1]))


def test_what_deepstack_adds(tmp_path: Path) -> None:
    step = Step(tmp_path, "llama", [(70, 4)])
    kernels()
    deepstack = DeepStackRows(torch.tensor([2, 0]), random(1, 2, HIDDEN, seed=2))
    assert same(step.run(step.team, [0, 3], deepstack), step.run(step.layers, [0, 3], deepstack))


def test_threads_that_come_late(tmp_path: Path) -> None:
    """With more threads than cores some find that others have computed several jobs meanwhile."""
    script = f"from {__name__} import check_with_many_threads as check; check({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def check_with_many_threads(path: str) -> None:
    """In a process of its own, because no thread of the kernels ends. Raises AssertionError."""
    step = Step(Path(path), "llama", [(LONG, 1)])
    set_threads(kernels(), 9)
    expected = step.run(step.layers, [0])
    assert all(same(step.run(step.team, [0]), expected) for _ in range(100))
