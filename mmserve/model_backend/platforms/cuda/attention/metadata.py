"""The metadata of a step for the attention kernels, and its builder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from mmserve.model_backend.attention.interface import AttentionInput, AttentionSpec, StepLimits
from mmserve.model_backend.platforms.cuda.attention.record import StepRecord
from mmserve.model_backend.platforms.cuda.attention.tiling import AttentionTiling
from mmserve.model_backend.platforms.cuda.attention.work import (
    Int32s,
    block_tables,
    other_rows,
    prefill_tiles,
    row_tiles,
    short_chunks,
    split_work,
)

_FIRST_PARTIALS_NBYTES = 256 << 20
"""Most room of the first partial results. More is taken when a step needs it, and graphs are then captured again."""
_MOST_FIRST_INTS = 1 << 24
"""Of the first record."""
_ITEM_INTS, _MERGE_INTS, _ROW_INTS = 7, 3, 8
"""Numbers in the record of an item of splits, of a row that is merged or not, and of a row or a block id otherwise, at
most."""


class Partials:
    """Where the results of splits wait for their merge. Shared by all layers. It grows as ``StepRecord`` does.

    ``heads_done``: int32 [max_rows], zeros between launches. See ``kernels.merge_rounded``.
    """

    def __init__(self, num_heads: int, head_dim: int, max_rows: int, device: torch.device) -> None:
        self._num_heads, self._head_dim, self._device = num_heads, head_dim, device
        self.heads_done = torch.zeros(max_rows, dtype=torch.int32, device=device)
        self._allocate(1)

    def reserve(self, num_places: int) -> None:
        if num_places > len(self.totals):
            self._allocate(2 * num_places)

    def _allocate(self, num_places: int) -> None:
        shape = (num_places, self._num_heads)
        self.totals = torch.empty(*shape, self._head_dim, dtype=torch.float32, device=self._device)
        self.weights = torch.empty(*shape, 2, dtype=torch.float32, device=self._device)


@dataclass(frozen=True)
class TritonMetadata:
    """One step."""

    record: torch.Tensor
    has_splits: bool
    num_tiles: int
    """Of prefill."""
    has_image_ends: bool
    works: Mapping[int | None, int]
    """Window -> index of the section with its items of splits. The next two have their merges, and the other rows."""
    partials: Partials


class TritonMetadataBuilder:
    """Owns the record on the device, which every step overwrites."""

    def __init__(self, limits: StepLimits, spec: AttentionSpec, tiling: AttentionTiling, device: torch.device) -> None:
        self._block_tokens, self._tiling, self._group = limits.block_tokens, tiling, spec.group_size
        self._windows = tuple(dict.fromkeys(mask.window for mask in spec.masks))
        # Room for the largest step of single rows, so that graphs captured before it stay valid.
        splits = limits.max_seqs * (-(-limits.max_blocks * limits.block_tokens // tiling.split_tokens) + 1)
        of_windows = len(self._windows) * (_ITEM_INTS * splits + _MERGE_INTS * limits.max_seqs)
        tables = limits.max_seqs * limits.max_blocks
        num_ints = tables + of_windows + _ROW_INTS * (limits.max_tokens + limits.max_seqs)
        self._record = StepRecord(device, min(num_ints, _MOST_FIRST_INTS))
        self._partials = Partials(spec.num_heads, spec.head_dim, limits.max_tokens, device)
        self._partials.reserve(min(splits, _FIRST_PARTIALS_NBYTES // (4 * spec.num_heads * (spec.head_dim + 2))) // 2)

    def build(self, step: AttentionInput) -> TritonMetadata:
        ids, tables = block_tables(step, self._block_tokens)
        short = short_chunks(step, self._tiling.short_tokens)
        short_tiles = row_tiles(step, tables, short, self._tiling.splits.rows // self._group)
        long_tiles = row_tiles(step, tables, ~short, self._tiling.prefill.rows // self._group)
        image_ends = np.empty(0) if step.image_ends is None else step.image_ends
        sections = [_ints(step.slot_mapping), ids, _ints(image_ends), prefill_tiles(step, long_tiles)]
        works = {}
        for window in self._windows:
            work = split_work(short_tiles, self._block_tokens, self._tiling.split_tokens, window)
            works[window] = len(sections)
            sections += [work.items, work.merges, other_rows(step, work.merges)]
            self._partials.reserve(work.num_places)
        return TritonMetadata(
            record=self._record.write(sections),
            has_splits=len(short_tiles) > 0,
            num_tiles=len(long_tiles),
            has_image_ends=step.image_ends is not None,
            works=works,
            partials=self._partials,
        )


def _ints(values: np.ndarray) -> Int32s:
    return values.astype(np.int32)
