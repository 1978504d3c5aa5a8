"""What the attention kernels of one step compute, as arrays of integers: items of splits, merges and prefill tiles.

They depend on lengths alone, which the host knows before any token is sampled. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmserve.model_backend.attention.interface import AttentionInput, Int64s

Bools = npt.NDArray[np.bool_]
Int32s = npt.NDArray[np.int32]


class SplitWork(NamedTuple):
    """See ``kernels.paged_splits``."""

    items: Int32s
    """[n, 7]."""
    merges: Int32s
    """[m, 3]."""
    num_places: int
    """Results of splits that are merged."""


def block_tables(step: AttentionInput, block_tokens: int) -> tuple[Int32s, Int64s]:
    """The block ids of all chunks, one chunk behind the other, and the index where each chunk's begin.

    A table stops at the last block that the step reads.
    """
    num_blocks = -(-(step.starts + step.counts) // block_tokens)
    ends = num_blocks.cumsum()
    ids = np.empty(int(ends[-1]), dtype=np.int32)
    firsts: Int64s = ends - num_blocks
    for slot, first, end in zip(step.slots.tolist(), firsts.tolist(), ends.tolist(), strict=True):
        ids[first:end] = step.block_tables[slot, : end - first]
    return ids, firsts


def short_chunks(step: AttentionInput, short_tokens: int) -> Bools:
    """Of each chunk, if it is computed in splits: it has few rows, and none attends to rows behind it."""
    short: Bools = step.counts <= short_tokens
    if step.image_ends is not None:
        positions = np.arange(len(step.image_ends)) + np.repeat(step.starts - _first_rows(step), step.counts)
        reads_ahead = np.add.reduceat(step.image_ends > positions + 1, _first_rows(step)) > 0
        short &= ~reads_ahead
    return short


def row_tiles(step: AttentionInput, tables: Int64s, chosen: Bools, tile_tokens: int) -> Int64s:
    """[n, 4]: the rows of the chosen chunks, up to ``tile_tokens`` of one chunk together.

    First row, number of rows, position of the first, and where the sequence's block ids begin (``block_tables``).
    """
    counts = step.counts[chosen]
    num_tiles = -(-counts // tile_tokens)
    chunk = np.repeat(np.arange(len(counts)), num_tiles)
    skipped = (np.arange(len(chunk)) - (num_tiles.cumsum() - num_tiles)[chunk]) * tile_tokens
    columns = (
        _first_rows(step)[chosen][chunk] + skipped,
        np.minimum(tile_tokens, counts[chunk] - skipped),
        step.starts[chosen][chunk] + skipped,
        tables[chosen][chunk],
    )
    return np.stack(columns, axis=1).astype(np.int64)


def split_work(tiles: Int64s, block_tokens: int, split_tokens: int, window: int | None = None) -> SplitWork:
    """Of ``row_tiles``. A row at position -1 sees nothing, and its result is 0.

    With a window, splits that lie before it are left out.
    """
    rows, counts, positions, tables = tiles.T
    ends = np.maximum(1, -(-(positions + counts) // split_tokens))
    begins = np.zeros_like(ends) if window is None else np.maximum(0, positions + 1 - window) // split_tokens
    splits = ends - begins
    num_places = np.where(splits > 1, splits * counts, 0)
    places = num_places.cumsum() - num_places
    tile = np.repeat(np.arange(len(tiles)), splits)
    split = np.arange(len(tile)) - (splits.cumsum() - splits)[tile]
    first = (begins[tile] + split) * split_tokens
    items = (
        rows[tile],
        counts[tile],
        positions[tile],
        first,
        tables[tile] + first // block_tokens,
        np.where(splits[tile] > 1, places[tile] + split, -1),
        splits[tile],
    )
    merged = np.repeat(np.arange(len(tiles)), np.where(splits > 1, counts, 0))
    token = np.arange(len(merged)) - np.searchsorted(merged, merged)
    merges = (rows[merged] + token, places[merged] + token * splits[merged], splits[merged])
    return SplitWork(_columns(items), _columns(merges), int(num_places.sum()))


def other_rows(step: AttentionInput, merges: Int32s) -> Int32s:
    """The step's rows that are not merged."""
    others = np.ones(int(step.counts.sum()), dtype=np.bool_)
    others[merges[:, 0]] = False
    return np.flatnonzero(others).astype(np.int32)


def prefill_tiles(step: AttentionInput, tiles: Int64s) -> Int32s:
    """[n, 6], see ``kernels.paged_prefill``: of ``row_tiles``, those that read most first."""
    ends = tiles[:, 2] + tiles[:, 1]
    # An image ends within its chunk. Ends ascend in a sequence, so the last row of a tile has the last one.
    image_ends = ends if step.image_ends is None else step.image_ends[tiles[:, 0] + tiles[:, 1] - 1]
    return _columns((*tiles.T, ends, image_ends))[np.argsort(-image_ends, kind="stable")]


def _first_rows(step: AttentionInput) -> Int64s:
    first_rows: Int64s = step.counts.cumsum() - step.counts
    return first_rows


def _columns(columns: Sequence[Int64s]) -> Int32s:
    return np.stack(columns, axis=1).astype(np.int32)
