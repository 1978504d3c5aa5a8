"""Resizes the bytes of a picture along one axis with Pillow's whole numbers (``processors.pixels.coefficients``)."""

from __future__ import annotations

import triton
import triton.language as tl

BITS = tl.constexpr(22)
"""Behind the point of a weight."""
HALF = tl.constexpr(1 << 21)


@triton.jit(do_not_specialize=["stride", "length", "outputs", "taps"])
def resample_lines(source, first, weights, result, stride, length, outputs, taps, TILE: tl.constexpr):
    """[lines, length, 3] -> [lines, outputs, 3], TILE bytes of a line a program. ``stride``: of a line of the source,
    in bytes."""
    line, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = at < 3 * outputs
    out, channel = at // 3, at % 3
    begin = tl.load(first + out, mask=inside, other=0)
    total = tl.full([TILE], HALF, tl.int32)
    for tap in range(taps):
        weight = tl.load(weights + tap * outputs + out, mask=inside, other=0)
        pixel = tl.minimum(begin + tap, length - 1)
        byte = tl.load(source + line * stride + 3 * pixel + channel, mask=inside, other=0)
        total += byte.to(tl.int32) * weight
    value = tl.minimum(tl.maximum(total >> BITS, 0), 255)
    tl.store(result + line * 3 * outputs + at, value.to(tl.uint8), mask=inside)


@triton.jit(do_not_specialize=["stride", "length", "outputs", "nbytes", "taps"])
def resample_columns(source, first, weights, result, stride, length, outputs, nbytes, taps, TILE: tl.constexpr):
    """[length, nbytes] -> [outputs, nbytes], TILE bytes of a line a program. ``stride``: as for ``resample_lines``."""
    out, at = tl.program_id(0), tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = at < nbytes
    begin = tl.load(first + out)
    total = tl.full([TILE], HALF, tl.int32)
    for tap in range(taps):
        weight = tl.load(weights + tap * outputs + out)
        line = tl.minimum(begin + tap, length - 1).to(tl.int64)
        byte = tl.load(source + line * stride + at, mask=inside, other=0)
        total += byte.to(tl.int32) * weight
    value = tl.minimum(tl.maximum(total >> BITS, 0), 255)
    tl.store(result + out.to(tl.int64) * nbytes + at, value.to(tl.uint8), mask=inside)
