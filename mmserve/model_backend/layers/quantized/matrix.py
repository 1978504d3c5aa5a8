"""The weights of a linear layer as whole numbers with scales, whatever format they were stored in."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class QuantizedMatrix:
    """Weight [o, i] is (codes[o, i] - zeros[o, g]) * scales[o, g], with g = i // group_size. The last group may be
    shorter."""

    codes: torch.Tensor
    """uint8 [out, in]; the bits of E4M3 numbers if ``is_float8``."""
    scales: torch.Tensor
    """float32 [out, groups]."""
    zeros: torch.Tensor
    """int16 [out, groups]; may lie outside the range of codes by one."""
    group_size: int
    bits: int
    is_float8: bool = False
    """Zero points are zeros then."""
    order: torch.Tensor | None = None
    """int64 [in]: column i of the codes is for input ``order[i]``. None: for input i."""
    rounds_inputs: bool = False
    """See ``QuantizationScheme``."""
