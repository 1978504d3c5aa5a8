"""The layouts in which the C++ kernels read weight matrices, and the kernels' numbers for them."""

from __future__ import annotations

import torch

from mmserve.model_backend.platforms.cpu import quantization

PANEL = 16
"""Outputs whose weights lie side by side in memory; the kernels' own number."""
_FLOAT32, _BFLOAT16, _INT8, _INT4 = range(4)


def pack(weight: torch.Tensor) -> torch.Tensor:
    """float32 [out, in] -> [out / 16, in, 16], with out a multiple of 16.

    The result is in bfloat16 if that loses nothing, so that a step reads half the memory. Then output i < 8 of a panel
    lies beside output i + 8, because the kernels widen such pairs together.
    """
    short = weight.bfloat16()
    if torch.equal(short.to(weight.dtype), weight):
        return short.view(-1, 2, PANEL // 2, weight.shape[1]).permute(0, 3, 2, 1).reshape(-1, weight.shape[1], PANEL)
    return weight.view(-1, PANEL, weight.shape[1]).transpose(1, 2).contiguous()


def format_of(packed: torch.Tensor) -> int:
    """The kernels' number for the format of packed weights."""
    if packed.dtype is torch.uint8:
        return _INT8 if packed.shape[-1] == quantization.INT8_NBYTES else _INT4
    return _BFLOAT16 if packed.dtype is torch.bfloat16 else _FLOAT32
