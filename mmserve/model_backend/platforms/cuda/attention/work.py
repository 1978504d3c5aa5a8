"""What the attention kernels of one step compute, as arrays of integers: decode items, merges and prefill tiles.

They depend on lengths alone, which the host knows before any token is sampled. Pure numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmserve.model_backend.attention.interface import AttentionInput, Int64s

Int32s = npt.NDArray[np.int32]


class DecodeWork(NamedTuple):
    """See ``kernels.paged_decode``. Without a row it is empty."""

    items: Int32s
    """[n, 4]."""
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


def decode_work(
    lengths: Int64s, tables: Int64s, block_tokens: int, split_tokens: int, window: int | None = None
) -> DecodeWork:
    """lengths: tokens of each row's sequence with the row's own; 0 gives a row of zeros. tables: see ``block_tables``.

    With a window, splits that lie before it are left out.
    """
    ends = np.maximum(1, -(-lengths // split_tokens))
    begins = np.zeros_like(ends) if window is None else np.maximum(0, lengths - window) // split_tokens
    counts = ends - begins
    row = np.repeat(np.arange(len(lengths)), counts)
    before = counts.cumsum() - counts
    split = np.arange(len(row)) - before[row] + begins[row]
    several = counts > 1
    places = np.where(several, counts, 0).cumsum() - np.where(several, counts, 0)
    items = np.empty((len(row), 4), dtype=np.int32)
    items[:, 0] = row
    items[:, 1] = split * split_tokens
    items[:, 2] = tables[row] + split * (split_tokens // block_tokens)
    items[:, 3] = np.where(several[row], places[row] + split - begins[row], -1)
    merges = np.stack((np.flatnonzero(several), places[several], counts[several]), axis=1).astype(np.int32)
    return DecodeWork(items, merges, int(counts[several].sum()))


def prefill_tiles(step: AttentionInput, tables: Int64s, tile_tokens: int) -> Int32s:
    """[n, 6], see ``kernels.paged_prefill``: of the chunks behind the decode rows, those that read most first."""
    first_chunk = step.num_decodes
    starts, counts = step.starts[first_chunk:], step.counts[first_chunk:]
    num_tiles = -(-counts // tile_tokens)
    chunk = np.repeat(np.arange(len(counts)), num_tiles)
    skipped = (np.arange(len(chunk)) - (num_tiles.cumsum() - num_tiles)[chunk]) * tile_tokens
    first_rows = first_chunk + counts.cumsum() - counts
    tiles = np.empty((len(chunk), 6), dtype=np.int32)
    tiles[:, 0] = first_rows[chunk] + skipped
    tiles[:, 1] = np.minimum(tile_tokens, counts[chunk] - skipped)
    tiles[:, 2] = starts[chunk] + skipped
    tiles[:, 3] = tables[first_chunk:][chunk]
    tiles[:, 4] = tiles[:, 2] + tiles[:, 1]
    tiles[:, 5] = tiles[:, 4]
    if step.image_ends is not None and len(tiles):
        # An image ends within its chunk. Ends ascend in a sequence, so the last row of a tile has the last one.
        tiles[:, 5] = step.image_ends[tiles[:, 0] + tiles[:, 1] - 1]
    return tiles[np.argsort(-tiles[:, 5], kind="stable")]
