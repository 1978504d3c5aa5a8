"""What FlashInfer is told of a step: whose queries, which pages, and how full the last one is. Pure numpy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mmserve.model_backend.attention.interface import AttentionInput, Int64s, Mask

Int32s = npt.NDArray[np.int32]
NO_WINDOW = -1


class Pages(NamedTuple):
    """Of consecutive chunks of a step. A page is a block of the KV cache."""

    query_indptr: Int32s
    """[n + 1]: chunk i has the queries from ``query_indptr[i]`` to ``query_indptr[i + 1]``."""
    indptr: Int32s
    """[n + 1]: chunk i has ``indices[indptr[i]:indptr[i + 1]]``."""
    indices: Int32s
    """Pages up to the chunk's last token."""
    last_page_len: Int32s
    """[n]: tokens in each chunk's last page, at least one."""


def pages_of(step: AttentionInput, first: int, end: int, block_tokens: int) -> Pages:
    """Of the chunks [first, end), at least one."""
    slots, counts = step.slots[first:end], step.counts[first:end]
    lengths = step.starts[first:end] + counts
    num_pages = -(-lengths // block_tokens)
    indices = [step.block_tables[slot, :count] for slot, count in zip(slots.tolist(), num_pages.tolist(), strict=True)]
    return Pages(
        _indptr(counts),
        _indptr(num_pages),
        np.concatenate(indices).astype(np.int32),
        (lengths - (num_pages - 1) * block_tokens).astype(np.int32),
    )


def window_left(mask: Mask) -> int:
    """How many tokens before its own a row sees."""
    return NO_WINDOW if mask.window is None else mask.window - 1


def _indptr(counts: Int64s) -> Int32s:
    return np.concatenate(([0], counts.cumsum())).astype(np.int32)
