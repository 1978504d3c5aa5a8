"""Rows of activations as FP8 with a scale each, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def quantize_rows(x, out, scales, stride_x, SIZE: tl.constexpr, PADDED: tl.constexpr, LARGEST: tl.constexpr):
    """A program a row of SIZE numbers: out = x / scale, with the scale that makes the row's largest number LARGEST."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    values = tl.load(x + row * stride_x + at, mask=at < SIZE, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), 0), 1e-12) / LARGEST
    tl.store(scales + row, scale)
    quantized = tl.clamp(values / scale, -LARGEST, LARGEST)
    tl.store(out + row * SIZE + at, quantized.to(out.dtype.element_ty), mask=at < SIZE)
