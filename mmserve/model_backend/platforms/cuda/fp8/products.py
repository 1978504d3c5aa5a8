"""The products of FP8 units, by torch. On a CPU torch has ``by_rows`` alone; ``by_blocks`` is for Hopper GPUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.functional import ScalingType

from mmserve.model_backend.platforms.cuda.fp8.rows import GROUP, Rows

_SCALES_TOGETHER = 4
"""A row of blocks has its scales in a multiple of so many places, of which the last ones are not used."""


def by_rows(x: Rows, weight: Rows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """[rows of x, outputs]. Both sides have a scale for each row."""
    return torch._scaled_mm(
        *(x.numbers, weight.numbers.T),
        scale_a=x.scales,
        scale_b=weight.scales.T,
        bias=bias,
        out_dtype=dtype,
        use_fast_accum=True,
    )


def by_blocks(x: Rows, weight: Rows, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """As ``by_rows``. x has a scale for each group, and weights as ``scales_of_weights`` makes them.

    Sums cannot be the fast, less exact ones.
    """
    outputs, inputs = weight.numbers.shape
    of_outputs = weight.scales.shape == (outputs, inputs // GROUP)
    return F.scaled_mm(
        *(x.numbers, weight.numbers.T, x.scales, ScalingType.BlockWise1x128, weight.scales),
        ScalingType.BlockWise1x128 if of_outputs else ScalingType.BlockWise128x128,
        bias=bias,
        output_dtype=dtype,
    )


def scales_of_weights(scales: torch.Tensor) -> torch.Tensor:
    """float32 [outputs, groups] -> as ``by_blocks`` reads them.

    Where GROUP outputs each have the same ones: [groups filled up, outputs / GROUP], strides (1, groups filled up).
    Else, as where matrices of other sizes are fused, [outputs, groups], strides (1, outputs).
    """
    outputs, groups = scales.shape
    blocks = scales[::GROUP]
    if outputs % GROUP or not torch.equal(blocks.repeat_interleave(GROUP, dim=0), scales):
        return scales.T.contiguous().T
    padded = -(-groups // _SCALES_TOGETHER) * _SCALES_TOGETHER
    return F.pad(blocks, (0, padded - groups)).contiguous().T
