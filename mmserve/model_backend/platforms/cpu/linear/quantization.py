"""Weights rounded to 8 or 4 bits when they are loaded, in formats of GGUF files.

Every 32 neighbouring weights of an output are a block with a scale in half precision: Q8_0, symmetric about zero, has
8.5 bits a weight, Q4_1 has 5. That divides the range from the minimum, in half precision too, to the maximum into 15
steps.
"""

from __future__ import annotations

import torch

from mmserve.model_backend.layers.quantized.gguf import Blocks

INT8, INT4 = "Q8_0", "Q4_1"
GROUP = 32
"""Weights that share a scale; the kernels' own number, as is the panel's."""
PANEL = 16
"""Outputs whose weights lie side by side in memory."""
_INT8_MAX, _INT8_ZERO, _INT4_MAX = 127, 128, 15
_LEAST = 2.0**-24
"""The least positive number in half precision."""


def rounded(name: str, weight: torch.Tensor) -> Blocks:
    """float32 [out, in], a multiple of 32, in the format ``name``. Scales that are too large become infinite."""
    grouped = torch.unflatten(weight, 1, (-1, GROUP))
    return _to_int8(grouped) if name == INT8 else _to_int4(grouped)


def numbers(name: str, weight: torch.Tensor) -> torch.Tensor:
    """What ``rounded`` makes of a matrix, as float32 [out, in]."""
    found = rounded(name, weight)
    scale, *minimum = (each.float()[..., None] for each in found.halves)
    steps = torch.unflatten(found.codes, 1, (-1, GROUP)).float()
    of_groups = steps * scale + minimum[0] if minimum else (steps - _INT8_ZERO) * scale
    return of_groups.flatten(1)


def _to_int8(grouped: torch.Tensor) -> Blocks:
    scale = (grouped.abs().amax(-1) / _INT8_MAX).half()
    codes = _steps(grouped, scale).clamp_(-_INT8_MAX, _INT8_MAX).add_(_INT8_ZERO)
    return _blocks(codes, 8, scale)


def _to_int4(grouped: torch.Tensor) -> Blocks:
    minimum = grouped.amin(-1).half()
    offset = grouped - minimum[..., None]
    scale = (offset.amax(-1) / _INT4_MAX).half()
    return _blocks(_steps(offset, scale).clamp_(0, _INT4_MAX), 4, scale, minimum)


def _steps(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (numbers / scale[..., None].float().clamp(min=_LEAST)).round_()


def _blocks(codes: torch.Tensor, bits: int, *halves: torch.Tensor) -> Blocks:
    scales = tuple(each[..., None].view(torch.uint8)[..., None, :] for each in halves)
    return Blocks(codes.to(torch.uint8).flatten(1), bits, scales, halves)
