"""``torch.nn.functional.scaled_mm`` with scales of blocks, as CUDA has it on Hopper: its rules, and its product in
float64. On a CPU torch has no such product."""

from __future__ import annotations

import torch
from torch.nn.functional import ScalingType

GROUP = 128


def scaled_mm(
    left: torch.Tensor,
    right: torch.Tensor,
    left_scales: torch.Tensor,
    left_kind: ScalingType,
    right_scales: torch.Tensor,
    right_kind: ScalingType,
    *,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype,
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """[rows, in] times [in, outputs]. Raises ValueError where torch would, or cuBLAS behind it."""
    (rows, inputs), outputs = left.shape, right.shape[1]
    groups = -(-inputs // GROUP)
    _check(left.dtype is right.dtype is torch.float8_e4m3fn, "both must be e4m3")
    _check(left.is_contiguous() and right.T.is_contiguous(), "a row's inputs lie next to each other, on both sides")
    _check(inputs % 16 == 0 and outputs % 16 == 0, "sizes are multiples of 16")
    _check(not use_fast_accum, "no fast sums with blocks")
    _check(bias is None or bias.dtype is output_dtype, "a bias has the result's dtype")
    _check(left_kind is ScalingType.BlockWise1x128, "the left side has a scale a group")
    _check_layout(left_scales, (rows, groups), rows)
    left_factors = left_scales.double().repeat_interleave(GROUP, dim=1)[:, :inputs]
    if right_kind is ScalingType.BlockWise1x128:
        _check_layout(right_scales, (outputs, groups), outputs)
        right_factors = right_scales.double().repeat_interleave(GROUP, dim=1)[:, :inputs]
    else:
        _check(right_kind is ScalingType.BlockWise128x128, "the right side has a scale a group or a block")
        padded = -(-groups // 4) * 4
        _check_layout(right_scales, (padded, -(-outputs // GROUP)), padded)
        blocks = right_scales.double().T[:, :groups]
        right_factors = blocks.repeat_interleave(GROUP, 0)[:outputs].repeat_interleave(GROUP, 1)[:, :inputs]
    found = (left.double() * left_factors) @ (right.T.double() * right_factors).T
    return (found if bias is None else found + bias.double()).to(output_dtype)


def _check_layout(scales: torch.Tensor, shape: tuple[int, int], stride: int) -> None:
    _check(scales.dtype is torch.float32, "scales are float32")
    _check(scales.shape == shape, f"scales must be {shape}, and are {tuple(scales.shape)}")
    _check(scales.stride(0) == 1 and (shape[1] == 1 or scales.stride(1) == stride), f"strides must be (1, {stride})")
    _check(stride % 4 == 0, f"{stride} scales are not a multiple of 16 bytes")


def _check(so: bool, rule: str) -> None:
    if not so:
        raise ValueError(rule)
