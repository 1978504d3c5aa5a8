"""Memory for weights that are read in every step: in huge pages, which one matrix alone is mostly too small for."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mmserve.runtime.memory.allocator import prefer_huge_pages

_CHUNK_NBYTES = 64 << 20
"""Taken at once. Its pages become resident when they are written."""
_LINE_NBYTES = 64

_chunk = torch.empty(0, dtype=torch.uint8)
"""What is left of the last chunk. Weights keep the chunk alive that they are in."""


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that begins at a cache line, as torch's own do."""
    global _chunk
    nbytes = math.prod(shape) * dtype.itemsize
    taken = -(-nbytes // _LINE_NBYTES) * _LINE_NBYTES
    if taken > len(_chunk):
        _chunk = torch.empty(max(taken, _CHUNK_NBYTES), dtype=torch.uint8)
        prefer_huge_pages(_chunk.data_ptr(), _chunk.nbytes)
    found, _chunk = _chunk[:nbytes], _chunk[taken:]
    return found.view(dtype).view(*shape)
