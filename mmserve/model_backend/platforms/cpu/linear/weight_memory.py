"""Memory for weights that are read in every step: in huge pages, which one matrix alone is mostly too small for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mmserve.model_backend.platforms.cpu.memory import zeros_when_used
from mmserve.runtime.memory.allocator import HUGE_PAGE_NBYTES, prefer_huge_pages

_CHUNK_NBYTES = 64 << 20
"""Taken at once. Its pages become resident when they are written."""
_LINE_NBYTES = 64

_chunk = torch.empty(0, dtype=torch.uint8)
"""What is left of the last chunk. Weights keep the chunk alive that they are in."""


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that begins at a cache line, as torch's own do. Raises MemoryError if the kernel refuses the size."""
    global _chunk
    nbytes = math.prod(shape) * dtype.itemsize
    taken = -(-nbytes // _LINE_NBYTES) * _LINE_NBYTES
    if taken > len(_chunk):
        _chunk = _new_chunk(max(taken, _CHUNK_NBYTES))
    found, _chunk = _chunk[:nbytes], _chunk[taken:]
    return found.view(dtype).view(*shape)


def _new_chunk(nbytes: int) -> torch.Tensor:
    """Whole huge pages. Not from the heap: its pages may be in use already, and then they stay small."""
    whole = -(-nbytes // HUGE_PAGE_NBYTES) * HUGE_PAGE_NBYTES
    mapped = zeros_when_used((whole + HUGE_PAGE_NBYTES,), torch.uint8)
    chunk = mapped[-mapped.data_ptr() % HUGE_PAGE_NBYTES :][:whole]
    prefer_huge_pages(chunk.data_ptr(), chunk.nbytes)
    return chunk
