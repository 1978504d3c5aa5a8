"""The layout of a step's record: one int32 array on the GPU with everything that a step's kernels read but activations.

It begins with two numbers for each section, where the section starts and how many rows it has, so that a captured CUDA
graph reads sections of any length from the one address that it knows.
"""

from __future__ import annotations

import triton
import triton.language as tl

SLOTS = tl.constexpr(0)
"""Of each row, where its K and V are stored: block * tokens per block + offset."""
BLOCKS = tl.constexpr(1)
"""Block ids of all sequences, one behind the other."""
IMAGE_ENDS = tl.constexpr(2)
"""``AttentionInput.image_ends``, or nothing."""
TILES = tl.constexpr(3)
"""Of prefill: ``paged_prefill``."""
FIRST_WORK = tl.constexpr(4)
"""From here on, for each distinct window: items and merges of ``paged_splits``, and the rows that are not merged."""


@triton.jit
def section(record, INDEX: tl.constexpr):
    """Address of the section's first number, and the number of its rows."""
    return record + tl.load(record + 2 * INDEX), tl.load(record + 2 * INDEX + 1)
