"""Codes of 4 or 8 bits within words of 32 bits, the lowest bits first."""

from __future__ import annotations

import torch

WORD_BITS = 32


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """int32 [..., n] -> uint8 [..., n, 32 / bits]."""
    whole = words.contiguous().view(torch.uint8).view(*words.shape, WORD_BITS // 8)
    if bits == 8:
        return whole
    return torch.stack((whole & 15, whole >> 4), dim=-1).flatten(-2)
