"""Weights rounded to 8 or 4 bits, in the layout that the C++ kernels read.

Every 32 neighbouring weights of an output are a group with a scale, and for 4 bits a minimum, in bfloat16: 8.5 and 5
bits a weight. int8 is symmetric about zero; int4 divides the range from the minimum to the maximum into 15 steps.
"""

from __future__ import annotations

import torch

GROUP = 32
"""Weights that share a scale; the kernels' own number, as is the panel's."""
PANEL = 16
"""Outputs whose weights lie side by side in memory."""
_INT8_MAX, _INT4_MAX = 127, 15
_SCALES_NBYTES = 2 * PANEL
"""Of the scales of one group of a panel."""
INT8_NBYTES = _SCALES_NBYTES + GROUP * PANEL
"""Of one group of a panel in int8. In int4 it is smaller."""


def to_int8(weight: torch.Tensor) -> torch.Tensor:
    """float32 [out, in], multiples of 16 and 32 -> uint8 [out / 16, in / 32, 544]."""
    grouped = _grouped(weight)
    scale = _stored_scale(grouped.abs().amax(-1) / _INT8_MAX)
    q = (grouped / scale[..., None]).round_().clamp_(-_INT8_MAX, _INT8_MAX)
    pairs = q.to(torch.int8).view(*q.shape[:-1], -1, 2)
    return _joined((scale,), pairs.transpose(2, 3))


def to_int4(weight: torch.Tensor) -> torch.Tensor:
    """float32 [out, in], multiples of 16 and 32 -> uint8 [out / 16, in / 32, 320]."""
    grouped = _grouped(weight)
    minimum = grouped.amin(-1).bfloat16().float()
    scale = _stored_scale((grouped.amax(-1) - minimum) / _INT4_MAX)
    q = ((grouped - minimum[..., None]) / scale[..., None]).round_().clamp_(0, _INT4_MAX)
    # eight inputs, byte, half of the byte, even or odd input
    pairs = q.to(torch.uint8).view(*q.shape[:-1], -1, 2, 2, 2)
    words = pairs[..., 0, :] | pairs[..., 1, :] << 4
    return _joined((scale, minimum), words.permute(0, 1, 3, 2, 5, 4))


def int8_rows(packed: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows int64 [T] of the matrix that ``to_int8`` returned, as float32 [T, in]."""
    groups, column = packed[indices // PANEL], indices % PANEL
    every = torch.arange(len(indices))
    scale = groups[..., :_SCALES_NBYTES].contiguous().view(torch.bfloat16)[every, :, column]
    pairs = groups[..., _SCALES_NBYTES:].contiguous().view(torch.int8).view(*groups.shape[:2], -1, PANEL, 2)
    q = pairs[every, :, :, column].flatten(-2)
    return torch.mul(q, scale[..., None].float()).flatten(-2)


def from_int4(packed: torch.Tensor) -> torch.Tensor:
    """The matrix that ``to_int4`` returned, as float32 [out, in]."""
    scale, minimum = packed[..., : 2 * _SCALES_NBYTES].contiguous().view(torch.bfloat16).float().chunk(2, dim=-1)
    # eight inputs, output, even or odd input, byte
    words = packed[..., 2 * _SCALES_NBYTES :].reshape(*packed.shape[:2], 4, PANEL, 2, 2)
    pairs = torch.stack((words & _INT4_MAX, words >> 4), dim=-1)
    q = pairs.permute(0, 1, 3, 2, 5, 6, 4).flatten(-4)
    rows = q * scale[..., None] + minimum[..., None]
    return rows.transpose(1, 2).flatten(2).flatten(0, 1)


def _grouped(weight: torch.Tensor) -> torch.Tensor:
    """-> [out / 16, groups, 16, 32]"""
    return weight.view(-1, PANEL, weight.shape[1] // GROUP, GROUP).transpose(1, 2)


def _stored_scale(scale: torch.Tensor) -> torch.Tensor:
    """The scale as bfloat16 stores it; never zero."""
    stored: torch.Tensor = scale.clamp(min=torch.finfo(torch.bfloat16).tiny).bfloat16().float()
    return stored


def _joined(scales: tuple[torch.Tensor, ...], q: torch.Tensor) -> torch.Tensor:
    """[panels, groups, 16] each and [panels, groups, ...] -> their bytes, group by group."""
    q_bytes = q.flatten(2).view(torch.uint8)
    return torch.cat([*(scale.bfloat16().view(torch.uint8) for scale in scales), q_bytes], dim=-1)
