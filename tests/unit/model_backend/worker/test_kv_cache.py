"""The number of KV blocks follows from the deployment, or from the device's free memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from msgspec.structs import replace

from mmserve.config.config import Config
from mmserve.config.resolved.gpu_memory import Card, RankShare, graphs_nbytes, kv_nbytes
from mmserve.config.resolved.graph_ladder import ladder
from mmserve.model_backend.attention.interface import StepLimits
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.model_backend.worker.memory_profile import largest_step
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import StartupError
from tests.fakes.models.checkpoints import VOCAB, make_llama
from tests.fakes.ranks.engine import make_runner

GIB = 1024 * MIB


class SmallDevice(TorchPlatform):
    """As a GPU with so much memory; steps take ``peak_nbytes`` of it."""

    def __init__(self, card: Card, peak_nbytes: int = 0) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self._card, self._peak_nbytes = card, peak_nbytes
        self.released = False

    def release_cached_memory(self) -> None:
        self.released = True

    def device_memory(self) -> Card:
        assert self.released
        return self._card

    def peak_nbytes(self, work: Callable[[], object]) -> int:
        work()
        return self._peak_nbytes


def test_the_cache_takes_what_steps_and_graphs_leave(tmp_path: Path) -> None:
    directory = make_llama(tmp_path)
    block_nbytes = make_runner(directory, kv_tokens=200 * 16)._kv.nbytes // 200
    config = Config(model=str(directory), max_num_seqs=8, gpu_memory_utilization=0.5, max_num_batched_tokens=64)
    peak, card = 64 * MIB, Card(4 * GIB, 4 * GIB)
    others = kv_nbytes(card, RankShare(peak, graphs_nbytes(ladder(8), peak, 64, VOCAB)), 0.5)
    used = Card(4 * GIB, 4 * GIB - (others - 85 * block_nbytes))
    assert make_runner(directory, platform=SmallDevice(used, peak), kv_tokens=None, config=config).num_blocks == 85
    eager = replace(config, enforce_eager=True)
    assert make_runner(directory, platform=SmallDevice(used, peak), kv_tokens=None, config=eager).num_blocks > 85
    less = replace(config, gpu_memory_utilization=0.4)
    with pytest.raises(StartupError, match="--gpu-memory-utilization"):
        make_runner(directory, platform=SmallDevice(used, peak), kv_tokens=None, config=less)


def test_more_blocks_than_all_slots_can_use_are_not_taken(tmp_path: Path) -> None:
    device = SmallDevice(Card(1 << 40, 1 << 40))
    runner = make_runner(make_llama(tmp_path), platform=device, kv_tokens=None)
    assert runner.num_blocks == 2 * 8 * 16, "twice what 8 slots of 256 tokens can use"


def test_a_step_that_does_not_fit_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    class Full(SmallDevice):
        def peak_nbytes(self, work: Callable[[], object]) -> int:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(StartupError, match=r"a step of 2048 tokens .*--max-num-batched-tokens"):
        make_runner(make_llama(tmp_path), platform=Full(Card(GIB, GIB)), kv_tokens=None)


@pytest.mark.parametrize(("tokens", "counts"), [(300, [256, 44]), (512, [256, 256]), (100, [100])])
def test_the_largest_step_has_all_tokens_at_the_end_of_long_sequences(tokens: int, counts: list[int]) -> None:
    step = largest_step(StepLimits(tokens, 8, 16, 16), 256)
    assert step.counts.tolist() == counts
    assert set((step.starts + step.counts).tolist()) == {256}
    assert len(step.slot_mapping) == tokens


@pytest.mark.parametrize("prefault", [False, True])
def test_the_cache_takes_its_memory_at_start_only_with_prefault(tmp_path: Path, prefault: bool) -> None:
    directory = make_llama(tmp_path)
    config = Config(model=str(directory), prefault=prefault)
    before = psutil.Process().memory_info().rss
    runner = make_runner(directory, config=config, platform=CpuPlatform(torch.float32), kv_tokens=1 << 18)
    taken = psutil.Process().memory_info().rss - before
    assert runner._kv.nbytes > 100 * MIB
    assert (taken > 0.9 * runner._kv.nbytes) is prefault


class FullDevice(TorchPlatform):
    """All of its memory is used by others."""

    def __init__(self, error: Exception) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self._error = error

    def allocate_kv_cache(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        raise self._error


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_cache_for_which_there_is_no_memory_is_an_error_that_says_what_to_do(
    tmp_path: Path, error: Exception
) -> None:
    with pytest.raises(StartupError, match=r"KV cache of \d+ MiB .*--kv-cache-gb") as raised:
        make_runner(make_llama(tmp_path), platform=FullDevice(error), kv_tokens=4096)
    assert "\n" not in str(raised.value)


def test_other_errors_of_the_device_are_not_taken_for_a_lack_of_memory(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="illegal"):
        make_runner(make_llama(tmp_path), platform=FullDevice(RuntimeError("illegal access")))
