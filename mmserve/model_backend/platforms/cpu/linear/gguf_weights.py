"""Matrices of GGUF files in the layout that the C++ kernels read.

See ``csrc/grouped/gguf_linear.h``, ``gguf_scales.h`` and ``grouped_weights.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

from mmserve.checkpoint.gguf.tensor_types import TENSOR_TYPES
from mmserve.model_backend.layers.quantized.gguf import Blocks, blocks
from mmserve.model_backend.platforms.cpu.linear import weight_memory
from mmserve.model_backend.platforms.cpu.linear.quantization import GROUP, PANEL
from mmserve.runtime.errors import StartupError

FORMAT = 9
"""The kernels' number."""
_LINE_NBYTES = 64
_QUAD = 4
"""Neighbouring inputs whose codes lie side by side: a number of 32 bits here."""
_AT_ONCE = 1 << 24
"""Bytes, or weights, that are taken apart together: their codes take a byte each meanwhile."""
_NUMBERS = {kind.name: number for number, kind in TENSOR_TYPES.items()}
TakeApart = Callable[[str, torch.Tensor], Blocks]


def pack(matrices: Sequence[tuple[str, torch.Tensor]], take_apart: TakeApart = blocks) -> torch.Tensor:
    """(format, rows as they are in the file) of matrices one below the other -> uint8 [bytes].

    Each must have a multiple of 16 rows. ``take_apart``: for rows that are not as in a file. Raises StartupError if a
    scale is not finite.
    """
    panels = [_packed(name, rows, take_apart) for name, rows in matrices]
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


def _packed(name: str, rows: torch.Tensor, take_apart: TakeApart) -> torch.Tensor:
    """uint8 [bytes], padded to a whole line."""
    step = max(1, _AT_ONCE // rows.shape[1] // PANEL) * PANEL
    parts = [_panels(take_apart(name, rows[at : at + step])) for at in range(0, len(rows), step)]
    together = torch.cat(parts) if len(parts) > 1 else parts[0]
    return F.pad(together.flatten(), (0, -together.numel() % _LINE_NBYTES))


def _panels(found: Blocks) -> torch.Tensor:
    """uint8 [panels, bytes]."""
    if not found.is_finite:
        raise StartupError("the scale of a block is not finite: the file is damaged")
    count = found.scales[0].shape[1]
    # panels, blocks, numbers, outputs, bytes
    scales = [torch.unflatten(each, 0, (-1, PANEL)).permute(0, 2, 3, 1, 4).flatten(2) for each in found.scales]
    return torch.cat([*scales, _codes(found, count)], dim=-1).flatten(1)


def _codes(found: Blocks, count: int) -> torch.Tensor:
    """uint8 [panels, ``count`` blocks, bytes]."""
    quads = torch.unflatten(found.codes.contiguous().view(torch.int32), 0, (-1, PANEL))  # panels, outputs, quads
    if found.bits == 8:
        parts = [quads]
    else:
        parts = [_side_by_side(quads & 0x0F0F0F0F, 4)]
        if high := found.bits - 4:
            parts.append(_side_by_side(quads >> 4 & ((1 << high) - 1) * 0x01010101, high))
    groups = quads.shape[-1] * _QUAD // GROUP
    # panels, groups, quads, outputs
    arranged = [torch.unflatten(part, -1, (groups, -1)).permute(0, 2, 3, 1).flatten(2) for part in parts]
    together = torch.cat(arranged, dim=-1) if len(arranged) > 1 else arranged[0]
    return torch.unflatten(together.contiguous().view(torch.uint8), 1, (count, -1)).flatten(2)


def _side_by_side(quads: torch.Tensor, bits: int) -> torch.Tensor:
    """Bits of as many quads as there is room for in one, those of the first lowest."""
    together = 8 // bits
    each = torch.unflatten(quads, -1, (-1, together)).unbind(-1)
    joined = each[0]
    for place in range(1, together):
        joined = joined | each[place] << bits * place
    return joined
