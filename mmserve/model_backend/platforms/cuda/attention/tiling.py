"""How the attention kernels divide their work: sizes by head size and dtype, chosen from what the compiler reports.

Registers and shared memory for sm_90a are checked by ``tests/unit/model_backend/platforms/cuda/test_compile.py``;
``compiled.py`` beside it prints them for sm_80 and sm_120 too. No GPU has timed them yet.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from mmserve.model_backend.attention.interface import AttentionSpec

_MIN_PRODUCT_ROWS = 16
"""Of a product on tensor cores."""
_HOPPER_SHARED_BYTES = 227 * 1024
"""That a program may use there."""


class Tiling(NamedTuple):
    """Of one kernel."""

    rows: int
    """Query heads, or tokens times query heads, of a program."""
    tokens: int
    """Keys that are read together."""
    warps: int
    stages: int
    """Tiles of keys that are read ahead, the current one included."""


class AttentionTiling(NamedTuple):
    """Of all kernels. Numbers of tokens are powers of two, those of splits and segments at least a block's."""

    splits: Tiling
    prefill: Tiling
    short_tokens: int = 16
    """Chunks of at most so many tokens are computed in splits: decode rows, drafts, ends of prompts."""
    split_tokens: int = 256
    """See ``kernels.paged_splits``. Results depend on it in their last bits, so it is the same for all steps."""
    segment_tokens: int = 1024
    """See ``kernels.paged_prefill``."""

    @property
    def split_programs(self) -> int:
        """Of each multiprocessor: as many as fit it together."""
        return 3 if self.splits.tokens == 64 else 2


def padded(size: int) -> int:
    """The next power of two, as the sizes of a kernel's tensors are."""
    return 1 << (size - 1).bit_length()


def tiling_of(spec: AttentionSpec, dtype: torch.dtype, shared_bytes: int) -> AttentionTiling:
    """``dtype``: of queries. ``shared_bytes``: of memory that a program may use on this GPU."""
    heads, wide = max(_MIN_PRODUCT_ROWS, padded(spec.group_size)), spec.head_dim > 128
    if dtype is torch.float32:
        rows = max(32, padded(spec.group_size))
        return AttentionTiling(Tiling(heads, 16, 8 if wide else 4, 2), Tiling(rows, 16 if wide else 32, 8, 1))
    splits = Tiling(heads, 32 if wide else 64, 4, 3)
    if shared_bytes >= _HOPPER_SHARED_BYTES:
        return AttentionTiling(splits, Tiling(128, 32 if wide else 64, 8, 3))
    return AttentionTiling(splits, Tiling(64, 32, 8, 2) if wide else Tiling(64, 32, 4, 3))


def encoder_tiling(dtype: torch.dtype) -> Tiling:
    """Of a vision tower's attention, with heads of at most 128 numbers. ``Tiling.rows`` are those of one head."""
    return Tiling(32, 32, 8, 1) if dtype is torch.float32 else Tiling(64, 64, 4, 3)
