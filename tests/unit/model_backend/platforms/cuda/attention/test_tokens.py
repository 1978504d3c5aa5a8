"""A model on the attention kernels answers as it does on torch's attention, in chunks and in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from mmserve.config.config import Config
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.platforms.cuda.attention.backend import TritonAttention
from mmserve.model_backend.platforms.cuda.attention.tiling import AttentionTiling, Tiling
from mmserve.model_backend.platforms.reference import TorchPlatform
from tests.fakes.models.checkpoints import make_llama
from tests.fakes.ranks.engine import Driver, make_runner
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter
TILING = AttentionTiling(Tiling(16, 32, 4, 1), Tiling(64, 32, 4, 1), split_tokens=32, segment_tokens=64)
CPU = torch.device("cpu")


class Interpreted(TorchPlatform):
    """Torch, with the attention of a GPU."""

    def attention(self, spec: AttentionSpec, kv_dtype: torch.dtype) -> Any:
        return TritonAttention(spec, CPU, TILING, num_programs=2)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"), head_dim=16)


def answers(directory: Path, platform: TorchPlatform, kv_dtype: Literal["auto", "fp8"] = "auto") -> list[list[int]]:
    config = Config(model=str(directory), max_num_seqs=8, kv_cache_dtype=kv_dtype)
    driver = Driver(make_runner(directory, platform=platform, config=config), chunk=20)
    prompts = [[3 + (7 * i + 5 * k) % 90 for k in range(length)] for i, length in enumerate((37, 5))]
    running = [driver.add(slot, prompt) for slot, prompt in enumerate(prompts)]
    driver.run(4)
    assert not driver.failures
    return [sequence.output for sequence in running]


def test_tokens_are_those_of_torch(directory: Path) -> None:
    expected = answers(directory, TorchPlatform(CPU, torch.float32))
    assert answers(directory, Interpreted(CPU, torch.float32)) == expected


def test_first_tokens_with_a_cache_in_fp8_are_those_without(directory: Path) -> None:
    """On torch: the interpreter does not round to fp8."""
    platform = TorchPlatform(CPU, torch.float32)
    expected = answers(directory, platform)
    assert [tokens[:1] for tokens in answers(directory, platform, "fp8")] == [tokens[:1] for tokens in expected]
