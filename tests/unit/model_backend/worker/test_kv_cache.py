"""The number of KV blocks follows from the deployment, or from the device's free memory."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from mmserve.config.config import Config
from mmserve.model_backend.platforms.cpu.platform import CpuPlatform
from mmserve.model_backend.platforms.reference import TorchPlatform
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import StartupError
from tests.fakes.checkpoints import make_llama
from tests.fakes.engine import make_runner


class SmallDevice(TorchPlatform):
    """As a GPU with so much free memory, once cached memory has been released."""

    def __init__(self, free_nbytes: int) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self._free_nbytes = free_nbytes
        self.released = False

    def release_cached_memory(self) -> None:
        self.released = True

    def free_memory_nbytes(self) -> int:
        assert self.released
        return self._free_nbytes


@pytest.fixture(autouse=True)
def _one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)


def test_a_part_of_the_free_memory_is_filled_with_blocks(tmp_path: Path) -> None:
    directory = make_llama(tmp_path)
    runner = make_runner(directory, kv_tokens=200 * 16)
    block_nbytes = runner._kv.nbytes // 200
    runner = make_runner(directory, platform=SmallDevice(100 * block_nbytes), kv_tokens=None)
    assert runner.num_blocks == 85


def test_more_blocks_than_all_slots_can_use_are_not_taken(tmp_path: Path) -> None:
    runner = make_runner(make_llama(tmp_path), platform=SmallDevice(1 << 40), kv_tokens=None)
    assert runner.num_blocks == 2 * 8 * 16, "twice what 8 slots of 256 tokens can use"


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
