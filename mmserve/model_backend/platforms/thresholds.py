"""The smallest weights that top-k and top-p keep, without a sort and without waiting for the device."""

from __future__ import annotations

import torch

_LARGEST_BIT = 30
"""Of a float that is 0 or more: such floats are in the order of their bits, read as integers."""


def kth_largest(weights: torch.Tensor, ks: torch.Tensor) -> torch.Tensor:
    """float32 [R, 1]: each row's k-th largest of weights [R, vocab]; 0 where k, int64 [R, 1], is 0 or above vocab."""
    return _floor(weights.view(torch.int32), None, ks)


def nucleus_floor(weights: torch.Tensor, needed: torch.Tensor) -> torch.Tensor:
    """float32 [R, 1]: the largest weight from which on the weights [R, vocab], which are integers, sum to ``needed``,
    int64 [R, 1]; 0 where that is 0 or less, or more than the sum."""
    return _floor(weights.view(torch.int32), weights.long(), needed)


def _floor(bits: torch.Tensor, amounts: torch.Tensor | None, needed: torch.Tensor) -> torch.Tensor:
    """Finds the largest floor above which there is enough, bit by bit. Without ``amounts``, counts."""
    floor = torch.zeros_like(needed, dtype=torch.int32)
    for bit in range(_LARGEST_BIT, -1, -1):
        higher = floor | (1 << bit)
        kept = bits >= higher
        found = (kept if amounts is None else torch.where(kept, amounts, 0)).sum(dim=-1, keepdim=True)
        floor = torch.where(found >= needed, higher, floor)
    return floor.masked_fill_(needed <= 0, 0).view(torch.float32)
