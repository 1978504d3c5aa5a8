"""Which window a mask of transformers has."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mmserve.runtime.errors import StartupError

MaskFunction = Callable[..., torch.Tensor]
"""(batch, head, query, key) -> whether the query sees the key, as tensors of indices."""


def window_of(mask: MaskFunction, length: int) -> int | None:
    """The window of a causal mask over ``length`` tokens; None if each token sees all before it.

    Raises StartupError for another mask, for example one of chunks. Three rows are compared, which chunks, spans and
    fixed beginnings do not pass.
    """
    last = length - 1
    window = length - _first_visible(mask, last, length)
    for row in (max(0, last - 1), 3 * length // 4, length // 2):
        if _first_visible(mask, row, length) != max(0, row - window + 1):
            raise StartupError("its mask is neither causal nor a sliding window")
    return window if window < length else None


def _first_visible(mask: MaskFunction, row: int, length: int) -> int:
    """The first key that a query sees, when it sees all from there to itself and no others."""
    zero, keys = torch.zeros(1, dtype=torch.int64, device="cpu"), torch.arange(length, device="cpu")
    visible = torch.broadcast_to(mask(zero, zero, zero + row, keys), (length,))
    first = row + 1 - int(visible.sum())
    if not (0 <= first <= row) or not bool(visible[first : row + 1].all()):
        raise StartupError("its mask is neither causal nor a sliding window")
    return first
