"""Weights rounded to 8 or 4 bits, laid out as the C++ kernels read them. Knows no layer.

Every 32 neighbouring weights of an output share a scale, and for 4 bits a least value, in bfloat16: 8.5 and 5 bits a
weight. int8 is symmetric about zero; int4 divides the range from the least to the largest weight into 15 steps.
"""

from __future__ import annotations

import torch

GROUP = 32
"""Weights that share a scale; the kernels' own number, as are the panels' 16 outputs."""
_PANEL = 16
_INT8_MAX, _INT4_MAX = 127, 15
_HEAD = 2 * _PANEL
"""Bytes of a group's scales."""
INT8_NBYTES = _HEAD + GROUP * _PANEL
"""Of a group of a panel; int4's are fewer."""


def to_int8(weight: torch.Tensor) -> torch.Tensor:
    """float32 [out, in], multiples of 16 and 32 -> uint8 [out / 16, in / 32, 544]."""
    grouped = _grouped(weight)
    scale = _rounded(grouped.abs().amax(-1) / _INT8_MAX)
    whole = (grouped / scale[..., None]).round_().clamp_(-_INT8_MAX, _INT8_MAX)
    pairs = whole.to(torch.int8).view(*whole.shape[:-1], -1, 2)
    return _joined((scale,), pairs.transpose(2, 3))


def to_int4(weight: torch.Tensor) -> torch.Tensor:
    """float32 [out, in], multiples of 16 and 32 -> uint8 [out / 16, in / 32, 320]."""
    grouped = _grouped(weight)
    least = grouped.amin(-1).bfloat16().float()
    scale = _rounded((grouped.amax(-1) - least) / _INT4_MAX)
    whole = ((grouped - least[..., None]) / scale[..., None]).round_().clamp_(0, _INT4_MAX)
    pairs = whole.to(torch.uint8).view(*whole.shape[:-1], -1, 2, 2, 2)  # eights, bytes, halves of a byte, even or odd
    words = pairs[..., 0, :] | pairs[..., 1, :] << 4
    return _joined((scale, least), words.permute(0, 1, 3, 2, 5, 4))


def int8_rows(panels: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows int64 [T] of what ``to_int8`` returned, as float32 [T, in]."""
    groups, column = panels[indices // _PANEL], indices % _PANEL
    every = torch.arange(len(indices))
    scale = groups[..., :_HEAD].contiguous().view(torch.bfloat16)[every, :, column]
    pairs = groups[..., _HEAD:].contiguous().view(torch.int8).view(*groups.shape[:2], -1, _PANEL, 2)
    whole = pairs[every, :, :, column].flatten(-2)
    return torch.mul(whole, scale[..., None].float()).flatten(-2)


def _grouped(weight: torch.Tensor) -> torch.Tensor:
    """-> [out / 16, groups, 16, 32]"""
    return weight.view(-1, _PANEL, weight.shape[1] // GROUP, GROUP).transpose(1, 2)


def _rounded(scale: torch.Tensor) -> torch.Tensor:
    """To what is kept of it; never zero."""
    kept: torch.Tensor = scale.clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16().float()
    return kept


def _joined(heads: tuple[torch.Tensor, ...], body: torch.Tensor) -> torch.Tensor:
    """[panels, groups, 16] each and [panels, groups, ...] -> their bytes, group by group."""
    kept = body.flatten(2).view(torch.uint8)
    return torch.cat([*(head.bfloat16().view(torch.uint8) for head in heads), kept], dim=-1)
