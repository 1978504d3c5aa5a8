"""Quantized checkpoints' weights in the layouts that the C++ kernels read.

See ``csrc/grouped/grouped_weights.h`` and ``float8_linear.h``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.platforms.cpu.linear import weight_memory
from mmserve.model_backend.platforms.cpu.linear.quantization import GROUP, PANEL

_LINE_NBYTES = 64
_QUAD = 4
"""Neighbouring inputs whose codes lie side by side."""
_CODES4, _CODES8, _CODES8_NARROW_INPUTS, _FLOAT8 = 5, 6, 7, 8
"""The kernels' numbers."""
_FLOAT8_FACTOR = 2.0**56
"""Of scales: the kernels' products with E4M3 are smaller by it."""


def format_of(matrix: QuantizedMatrix) -> int:
    """The kernels' number for a product with ``pack(matrix)``."""
    if matrix.is_float8:
        return _FLOAT8
    if matrix.bits == 4:
        return _CODES4
    return _CODES8_NARROW_INPUTS if matrix.rounds_inputs else _CODES8


def pack(matrix: QuantizedMatrix) -> torch.Tensor:
    """A multiple of 16 outputs and of 32 inputs -> uint8 [bytes]."""
    parts = [_header(matrix), *([] if matrix.order is None else [_order(matrix.order)]), _panels(matrix)]
    packed = weight_memory.empty((sum(part.numel() for part in parts),), torch.uint8)
    torch.cat([part.flatten() for part in parts], out=packed)
    return packed


def _header(matrix: QuantizedMatrix) -> torch.Tensor:
    fields = torch.tensor([matrix.group_size, matrix.order is not None])
    return F.pad(fields.view(torch.uint8), (0, _LINE_NBYTES - 8 * len(fields)))


def _order(order: torch.Tensor) -> torch.Tensor:
    found = order.int().view(torch.uint8)
    return F.pad(found, (0, -len(found) % _LINE_NBYTES))


def _panels(matrix: QuantizedMatrix) -> torch.Tensor:
    """uint8 [panels, bytes]; the groups of equal size before a shorter last one, of which there may be none."""
    inputs, size = matrix.codes.shape[1], min(matrix.group_size, matrix.codes.shape[1])
    whole = inputs // size
    parts = [_groups(matrix, slice(0, whole), size)]
    if inputs % size:
        parts.append(_groups(matrix, slice(whole, whole + 1), inputs % size))
    return torch.cat(parts, dim=1)


def _groups(matrix: QuantizedMatrix, groups: slice, size: int) -> torch.Tensor:
    """``groups`` of ``size`` inputs each -> uint8 [panels, bytes]."""
    count = groups.stop - groups.start
    codes = matrix.codes[:, groups.start * matrix.group_size :][:, : count * size]
    blocks = codes.reshape(-1, PANEL, count, size // GROUP, GROUP).permute(0, 2, 3, 1, 4)
    scales, zeros = (
        numbers[:, groups].reshape(-1, PANEL, count).transpose(1, 2).contiguous()
        for numbers in (matrix.scales, matrix.zeros)
    )
    if matrix.is_float8:
        packed, scales = blocks.transpose(-2, -1), scales * _FLOAT8_FACTOR
    elif matrix.bits == 4:
        # pairs of quads, quad, its inputs
        quads = blocks.reshape(*blocks.shape[:-1], -1, 2, _QUAD)
        packed = (quads[..., 0, :] | quads[..., 1, :] << 4).transpose(-3, -2)
    else:
        packed = blocks.reshape(*blocks.shape[:-1], -1, _QUAD).transpose(-3, -2)
    parts = [scales.view(torch.uint8), zeros.view(torch.uint8), packed.flatten(2)]
    return torch.cat(parts, dim=-1).flatten(1)
