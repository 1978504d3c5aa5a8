"""Weights lie in chunks of whole huge pages, which were not in use before."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch

from mmserve.model_backend.platforms.cpu.linear import weight_memory
from mmserve.runtime.memory.allocator import HUGE_PAGE_NBYTES

CHUNK = 64 << 20
TAKE_BESIDE_FREE_MEMORY = """
import torch
from mmserve.model_backend.platforms.cpu.linear import weight_memory
from mmserve.runtime.memory.allocator import keep_freed_memory
keep_freed_memory()
freed = [torch.ones(1 << 20) for _ in range(80)]
freed.clear()
address = weight_memory.empty((1000,), torch.uint8).data_ptr()
with open("/proc/self/maps") as maps:
    heap = [line.split()[0].split("-") for line in maps if line.rstrip().endswith("[heap]")]
assert heap
assert not any(int(first, 16) <= address < int(end, 16) for first, end in heap)
"""


@pytest.fixture(autouse=True)
def new_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_memory, "_chunk", torch.empty(0, dtype=torch.uint8))


def test_neighbours_begin_at_cache_lines() -> None:
    first = weight_memory.empty((3, 5), torch.bfloat16)
    second = weight_memory.empty((7,), torch.float32)
    assert (first.shape, first.dtype) == ((3, 5), torch.bfloat16)
    assert (second.shape, second.dtype) == ((7,), torch.float32)
    assert first.data_ptr() % HUGE_PAGE_NBYTES == 0
    assert second.data_ptr() == first.data_ptr() + 64


def test_what_does_not_fit_begins_a_chunk() -> None:
    sizes = (10, CHUNK - 64, 10, CHUNK + 1)
    first, fits, next_chunk, large = (weight_memory.empty((size,), torch.uint8) for size in sizes)
    assert fits.data_ptr() == first.data_ptr() + 64
    assert next_chunk.data_ptr() % HUGE_PAGE_NBYTES == large.data_ptr() % HUGE_PAGE_NBYTES == 0
    for each in (first, next_chunk, large):
        each.fill_(1)  # all of it is memory


def test_memory_that_is_free_on_the_heap_is_not_taken() -> None:
    """It may have small pages, which stay small."""
    subprocess.run([sys.executable, "-c", TAKE_BESIDE_FREE_MEMORY], check=True, timeout=60)


def test_a_size_that_the_kernel_refuses() -> None:
    with pytest.raises(MemoryError):
        weight_memory.empty((1 << 46,), torch.uint8)
    assert math.prod(weight_memory.empty((2, 2), torch.uint8).shape) == 4
