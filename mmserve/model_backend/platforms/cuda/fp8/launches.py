"""Norms, attention and gates whose results are FP8 rows, in the launch that a 16-bit layer has for them too."""

from __future__ import annotations

import torch
import triton

from mmserve.model_backend.layers.ops import Addend
from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu, warps_of_row
from mmserve.model_backend.platforms.cuda.attention.tiling import padded
from mmserve.model_backend.platforms.cuda.attention.unmerged import Unmerged
from mmserve.model_backend.platforms.cuda.fp8.rows import LARGEST, Rows, empty_rows, quantized_in_one_launch
from mmserve.model_backend.platforms.cuda.kernels.merge_rounded import merge_rounded_splits
from mmserve.model_backend.platforms.cuda.kernels.quantize_rows import quantize_gated_rows, quantize_normed_rows

_COLUMNS = 1024
"""Of a program, where a row's groups are rounded by several."""


def normed(hidden: torch.Tensor, weight: torch.Tensor, eps: float, addend: Addend | None, group: int | None) -> Rows:
    """Of RMSNorm(hidden) [rows, size], once ``addend`` was added to ``hidden`` in place. At least one row."""
    count, size = hidden.shape
    found = empty_rows(count, size, group, hidden.device)
    values, addend_weight = (None, None) if addend is None else addend
    tensors = (hidden if values is None else values, weight if addend_weight is None else addend_weight, weight)
    with current_gpu(hidden):
        quantize_normed_rows[(len(found.numbers),)](
            *(hidden, *tensors, *found, count, hidden.stride(0), tensors[0].stride(0), found.scales.stride(1), eps),
            SIZE=size,
            PADDED=triton.next_power_of_2(size),
            ADD=values is not None,
            NORM=addend_weight is not None,
            GROUP=group,
            LARGEST=LARGEST,
            num_warps=warps_of_row(size),
        )
    return found


def attended(unmerged: Unmerged, group: int | None) -> Rows:
    """Of ``unmerged.merged()`` [rows, heads * dim], with the same bits as in two launches. At least one row."""
    if unmerged.merges is None:
        return quantized_in_one_launch(unmerged.out.flatten(1), group)
    count, heads, dim = unmerged.out.shape
    size, partials = heads * dim, unmerged.partials
    found = empty_rows(count, size, group, unmerged.out.device)
    with current_gpu(unmerged.out):
        merge_rounded_splits[(unmerged.num_programs,)](
            *(partials.totals, partials.weights, unmerged.record, partials.heads_done, unmerged.out),
            *(*found, len(found.numbers), found.scales.stride(1)),
            HEADS=heads,
            DIM=dim,
            PADDED_DIM=padded(dim),
            PADDED_SIZE=padded(size),
            GROUP=group,
            LARGEST=LARGEST,
            MERGES=unmerged.merges,
            num_warps=warps_of_row(size),
        )
    return found


def gated(x: torch.Tensor, gelu: bool, group: int | None) -> Rows:
    """Of act(first half) * second half of [rows, 2 * size]. At least one row."""
    count, size = x.shape[0], x.shape[1] // 2
    found = empty_rows(count, size, group, x.device)
    columns = triton.next_power_of_2(size) if group is None else _COLUMNS
    with current_gpu(x):
        quantize_gated_rows[(len(found.numbers), triton.cdiv(size, columns))](
            *(x, *found, count, x.stride(0), found.scales.stride(1)),
            SIZE=size,
            COLUMNS=columns,
            GELU=gelu,
            GROUP=group,
            LARGEST=LARGEST,
            num_warps=warps_of_row(columns),
        )
    return found
