"""The layouts in which the C++ kernels read weight matrices, and the kernels' numbers for them."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F

from mmserve.model_backend.platforms.cpu.linear import weight_memory

PANEL = 32
"""Outputs whose weights lie side by side in memory; the kernels' own number. The last panel may have zeros."""
_FLOAT32, _BFLOAT16, _ROUNDED = 0, 1, 4
TILED, EMULATED_TILES = 10, 11
"""As ``_ROUNDED``, but sums are those of tile registers, which have other bits; without these registers slowly."""


def pack(weight: torch.Tensor) -> torch.Tensor:
    """float32 [out, in] -> [panels, in, 32], or in bfloat16 [panels, in / 2, 32, 2] if that loses nothing.

    bfloat16 halves the memory that a step reads. Two neighbouring inputs share 32 bits; behind an odd last one is a
    zero.
    """
    short = weight.bfloat16()
    return pack_short(short) if torch.equal(short.to(weight.dtype), weight) else _in_panels(weight)


def pack_short(weight: torch.Tensor) -> torch.Tensor:
    """bfloat16 [out, in] -> [panels, in / 2, 32, 2]."""
    inputs = weight.shape[1]
    even = F.pad(weight, (0, 1)) if inputs % 2 else weight
    return _in_panels(even.view(len(even), -1, 2))


def _in_panels(weight: torch.Tensor) -> torch.Tensor:
    """[out, ...] -> [panels, ..., 32] or, of pairs, [panels, ..., 32, 2]."""
    whole, rest = divmod(len(weight), PANEL)
    panels = weight_memory.empty((whole + bool(rest), weight.shape[1], PANEL, *weight.shape[2:]), weight.dtype)
    panels[:whole] = weight[: whole * PANEL].view(whole, PANEL, *weight.shape[1:]).transpose(1, 2)
    if rest:
        panels[whole].zero_()
        panels[whole, :, :rest] = weight[whole * PANEL :].transpose(0, 1)
    return panels


def format_of(packed: torch.Tensor, *, rounds_inputs: bool = False) -> int:
    """The kernels' number for a product with packed weights. ``rounds_inputs``: to bfloat16, as the weights are."""
    if packed.dtype is torch.bfloat16:
        return _ROUNDED if rounds_inputs else _BFLOAT16
    return _FLOAT32


def rounded_format(kernels: ctypes.CDLL) -> int:
    """The kernels' number for the fastest product that rounds inputs to bfloat16, with weights in bfloat16."""
    return TILED if kernels.mm_has_tiles() else _ROUNDED
