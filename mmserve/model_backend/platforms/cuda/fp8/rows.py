"""Rows of activations or weights as FP8 numbers with scales: one for each row, or one for each 128 numbers of a row."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu, warps_of_row
from mmserve.model_backend.platforms.cuda.kernels.quantize_rows import quantize_rows

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
GROUP = 128
"""Numbers of a row that share a scale, where not all do; and outputs of a block of weights."""
_LEAST_SCALE = 1e-12
_ROWS_TOGETHER = 4
"""With a scale for each group the rows are filled up to a multiple of it: cuBLAS reads scales in 16 bytes."""


class Rows(NamedTuple):
    """Rows behind those that were asked for are zeros."""

    numbers: torch.Tensor
    """e4m3 [rows, size]."""
    scales: torch.Tensor
    """float32: [rows, 1], or [rows, size / GROUP] with strides (1, rows). Weights in blocks: ``products.by_blocks``."""


def empty_rows(count: int, size: int, group: int | None, device: torch.device) -> Rows:
    """For ``count`` rows. ``group``: None or GROUP, of which ``size`` is a multiple."""
    if group is None:
        numbers = torch.empty(count, size, dtype=FP8, device=device)
        return Rows(numbers, torch.empty(count, 1, dtype=torch.float32, device=device))
    count = -(-count // _ROWS_TOGETHER) * _ROWS_TOGETHER
    numbers = torch.empty(count, size, dtype=FP8, device=device)
    return Rows(numbers, torch.empty(size // group, count, dtype=torch.float32, device=device).T)


def widened(rows: Rows, count: int) -> torch.Tensor:
    """What the first ``count`` rows stand for, in float64. Not for weights in blocks."""
    numbers, scales = rows.numbers[:count].double(), rows.scales[:count].double()
    return numbers * scales.repeat_interleave(numbers.shape[1] // scales.shape[1], dim=1)


def quantized(x: torch.Tensor, group: int | None = None) -> Rows:
    """By torch, on any device."""
    count, size = x.shape
    found = empty_rows(count, size, group, x.device)
    numbers = torch.zeros(found.numbers.shape, dtype=torch.float32, device=x.device)
    numbers[:count] = x
    grouped = numbers.view(len(numbers), size // (group or size), group or size)
    scales = grouped.abs().amax(dim=2, keepdim=True).clamp_(min=_LEAST_SCALE) / LARGEST
    found.numbers.copy_((grouped / scales).clamp_(-LARGEST, LARGEST).flatten(1))
    found.scales.copy_(scales[..., 0])
    return found


def quantized_in_one_launch(x: torch.Tensor, group: int | None = None) -> Rows:
    """By a Triton kernel. Rows may have any stride."""
    count, size = x.shape
    found = empty_rows(count, size, group, x.device)
    if count:
        with current_gpu(x):
            quantize_rows[(len(found.numbers),)](
                *(x, found.numbers, found.scales, count, x.stride(0), found.scales.stride(1)),
                SIZE=size,
                PADDED=triton.next_power_of_2(size),
                GROUP=group,
                LARGEST=LARGEST,
                num_warps=warps_of_row(size),
            )
    return found
