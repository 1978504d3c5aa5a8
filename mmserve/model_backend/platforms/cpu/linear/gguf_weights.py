"""Matrices of GGUF files in the layout that the C++ kernels read.

See ``csrc/grouped/gguf_linear.h``, ``gguf_scales.h`` and ``grouped_weights.h``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from mmserve.checkpoint.gguf.tensor_types import QUANTIZED, TENSOR_TYPES
from mmserve.model_backend.layers.quantized.gguf import Blocks, blocks
from mmserve.model_backend.platforms.cpu.linear import weight_memory
from mmserve.model_backend.platforms.cpu.linear.quantization import GROUP, PANEL
from mmserve.runtime.errors import StartupError

FORMAT = 9
"""The kernels' number."""
_LINE_NBYTES = 64
_QUAD = 4
"""Neighbouring inputs whose codes lie side by side."""
_AT_ONCE = 1 << 24
"""Weights whose codes are taken apart together: these take a byte each meanwhile."""
_NUMBERS = {kind.name: number for number, kind in TENSOR_TYPES.items()}


def pack(matrices: Sequence[tuple[str, torch.Tensor]]) -> torch.Tensor:
    """(format, rows as they are in the file) of matrices one below the other -> uint8 [bytes].

    Each must have a multiple of 16 rows. Raises StartupError if a scale is not finite.
    """
    panels = [_packed(name, rows) for name, rows in matrices]
    header = _header(matrices, panels)
    packed = weight_memory.empty((len(header) + sum(len(each) for each in panels),), torch.uint8)
    torch.cat([header, *panels], out=packed)
    return packed


def _header(matrices: Sequence[tuple[str, torch.Tensor]], panels: Sequence[torch.Tensor]) -> torch.Tensor:
    sections, start = [], 0
    for (name, rows), each in zip(matrices, panels, strict=True):
        sections += [_NUMBERS[name], len(rows), start]
        start += len(each)
    nbytes = 8 * (2 + len(sections))
    padding = -nbytes % _LINE_NBYTES
    return F.pad(torch.tensor([len(panels), nbytes + padding, *sections]).view(torch.uint8), (0, padding))


def _packed(name: str, rows: torch.Tensor) -> torch.Tensor:
    """uint8 [bytes], padded to a whole line."""
    inputs = rows.shape[1] // QUANTIZED[name].nbytes * QUANTIZED[name].block
    step = max(1, _AT_ONCE // inputs // PANEL) * PANEL
    parts = [_panels(name, rows[at : at + step]) for at in range(0, len(rows), step)]
    together = torch.cat(parts) if len(parts) > 1 else parts[0]
    return F.pad(together.flatten(), (0, -together.numel() % _LINE_NBYTES))


def _panels(name: str, rows: torch.Tensor) -> torch.Tensor:
    """uint8 [panels, bytes]."""
    found = blocks(name, rows)
    if not found.is_finite:
        raise StartupError("the scale of a block is not finite: the file is damaged")
    count = found.scales[0].shape[1]
    # panels, blocks, numbers, outputs, bytes
    scales = [torch.unflatten(each, 0, (-1, PANEL)).permute(0, 2, 3, 1, 4).flatten(2) for each in found.scales]
    return torch.cat([*scales, _codes(found, count)], dim=-1).flatten(1)


def _codes(found: Blocks, count: int) -> torch.Tensor:
    """uint8 [panels, ``count`` blocks, bytes]."""
    outputs_last = found.codes.view(-1, PANEL, count, found.codes.shape[1] // count // GROUP, GROUP)
    codes = outputs_last.permute(0, 2, 3, 1, 4)  # panels, blocks, groups, outputs, inputs
    if found.bits == 8:
        return torch.unflatten(codes, -1, (-1, _QUAD)).transpose(-3, -2).flatten(2)
    pairs = torch.unflatten(codes & 15, -1, (-1, 2, _QUAD))
    parts = [(pairs[..., 0, :] | pairs[..., 1, :] << 4).transpose(-3, -2).flatten(-3)]
    if high := found.bits - 4:
        together = 8 // high
        quads = torch.unflatten(codes >> 4, -1, (-1, together, _QUAD))
        shifts = torch.arange(0, 8, high, dtype=torch.uint8)[:, None]
        upper = (quads << shifts).sum(-2, dtype=torch.uint8)  # panels, blocks, groups, outputs, parts, inputs
        parts.append(upper.transpose(-3, -2).flatten(-3))
    return torch.cat(parts, dim=-1).flatten(2)
