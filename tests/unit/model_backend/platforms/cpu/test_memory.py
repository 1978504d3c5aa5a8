"""Memory that a CPU's process takes from the kernel."""

from __future__ import annotations

import psutil
import pytest
import torch

from mmserve.model_backend.platforms.cpu.memory import zeros_when_used
from mmserve.runtime.byte_budget import MIB


def test_zeros_take_memory_only_where_they_are_used() -> None:
    rss = psutil.Process().memory_info
    before = rss().rss
    zeros = zeros_when_used((256, 1024, 256), torch.float32)
    assert zeros.shape == (256, 1024, 256)
    assert rss().rss - before < 32 * MIB
    zeros[100:150] = 1.0
    assert 50 * MIB <= rss().rss - before < 96 * MIB
    assert zeros.sum() == 50 * 1024 * 256


def test_too_large_a_size_is_refused() -> None:
    with pytest.raises(MemoryError, match="mmap"):
        zeros_when_used((1 << 50,), torch.float32)
