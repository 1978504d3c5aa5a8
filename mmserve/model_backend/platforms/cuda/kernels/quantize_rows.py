"""Rows of activations as FP8 numbers, with one scale a row or one for each group of numbers, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from mmserve.model_backend.platforms.cuda.kernels.rows import add_to_row, gated, normed

_VARYING = ["num_rows", "stride_group"]
"""With the step: a kernel for each kind of number would be compiled while requests wait."""


@triton.jit(do_not_specialize=_VARYING)
def quantize_rows(
    x,
    numbers,
    scales,
    num_rows,
    stride_x,
    stride_group,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """A program a row of SIZE numbers; rows from ``num_rows`` on are zeros. GROUP: see ``store_rounded``."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    inside = at < tl.where(row < num_rows, SIZE, 0)
    values = tl.load(x + row * stride_x + at, mask=inside, other=0.0).to(tl.float32)
    store_rounded(values, numbers, scales, row, 0, stride_group, SIZE, PADDED, GROUP, LARGEST)


@triton.jit(do_not_specialize=_VARYING)
def quantize_normed_rows(
    hidden,
    addend,
    addend_weight,
    weight,
    numbers,
    scales,
    num_rows,
    stride_hidden,
    stride_addend,
    stride_group,
    eps,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ADD: tl.constexpr,
    NORM: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """As ``quantize_rows``, of RMSNorm(hidden). ADD: after hidden += addend, or with NORM hidden += RMSNorm(addend)."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    inside = at < tl.where(row < num_rows, SIZE, 0)
    own = hidden + row * stride_hidden + at
    if ADD:
        values = tl.load(addend + row * stride_addend + at, mask=inside, other=0.0).to(tl.float32)
        if NORM:
            values = normed(values, addend_weight, at, inside, eps, SIZE)
        values = add_to_row(own, values, inside)
    else:
        values = tl.load(own, mask=inside, other=0.0).to(tl.float32)
    values = normed(values, weight, at, inside, eps, SIZE)
    store_rounded(values, numbers, scales, row, 0, stride_group, SIZE, PADDED, GROUP, LARGEST)


@triton.jit(do_not_specialize=_VARYING)
def quantize_gated_rows(
    x,
    numbers,
    scales,
    num_rows,
    stride_x,
    stride_group,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    GELU: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """As ``quantize_rows``, of ``rows.gated``, COLUMNS numbers a program: all of a row, or some of its groups."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * COLUMNS
    at = first + tl.arange(0, COLUMNS)
    values = gated(x + row * stride_x + at, at < tl.where(row < num_rows, SIZE, 0), SIZE, GELU)
    store_rounded(values, numbers, scales, row, first, stride_group, SIZE, COLUMNS, GROUP, LARGEST)


@triton.jit
def store_rounded(
    values,
    numbers,
    scales,
    row,
    first,
    stride_group,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """numbers = values / scale, with the scale that makes the largest number LARGEST.

    values: float32 [PADDED], the row's numbers from ``first`` on, and zeros behind its SIZE numbers. GROUP: None where
    all numbers of the row have one scale; else the group's is stored at ``row`` of its place.
    """
    at = tl.arange(0, PADDED)
    if GROUP is None:
        scale = tl.maximum(tl.max(tl.abs(values), 0), 1e-12) / LARGEST
        tl.store(scales + row, scale)
        rounded = tl.clamp(values / scale, -LARGEST, LARGEST)
    else:
        grouped = tl.reshape(values, [PADDED // GROUP, GROUP])
        scale = tl.maximum(tl.max(tl.abs(grouped), 1), 1e-12) / LARGEST
        group = first // GROUP + tl.arange(0, PADDED // GROUP)
        tl.store(scales + group * stride_group + row, scale, mask=group < SIZE // GROUP)
        rounded = tl.reshape(tl.clamp(grouped / scale[:, None], -LARGEST, LARGEST), [PADDED])
    to = numbers + row * SIZE + first + at
    tl.store(to, rounded.to(numbers.dtype.element_ty), mask=first + at < SIZE)
