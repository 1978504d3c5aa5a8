"""Products with weights that are stored as whole numbers or FP8, with a scale and a zero point for each group."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def coded_product(
    x,
    codes,
    scales,
    zeros,
    out,
    num_rows,
    stride_x,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    HALF: tl.constexpr,
    PACKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    UPCAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """out [num_rows, OUT] = x (codes - zeros)^T * scales. Programs: (tiles of COLUMNS outputs, tiles of ROWS rows).

    Inputs are taken in blocks of 2 * HALF, which lie in one group of GROUP. scales, zeros: float32 [OUT, GROUPS].
    codes: [OUT, IN]; PACKED: [OUT, IN / 2], where byte j of a block has input j in its low four bits and input HALF + j
    in its high ones."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    at = tl.arange(0, HALF)
    real, there = column < OUT, row < num_rows
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in tl.range(0, IN // (2 * HALF), num_stages=STAGES):
        group = block * 2 * HALF // GROUP
        scale = tl.load(scales + column * GROUPS + group, mask=real, other=0.0)
        zero = tl.load(zeros + column * GROUPS + group, mask=real, other=0.0)
        if PACKED:
            bytes_at = codes + column[None, :].to(tl.int64) * (IN // 2) + block * HALF + at[:, None]
            both = tl.load(bytes_at, mask=real[None, :])
            first = (both & 15).to(tl.float32) - zero[None, :]
            second = (both >> 4).to(tl.float32) - zero[None, :]
        else:
            codes_at = codes + column[None, :].to(tl.int64) * IN + block * 2 * HALF + at[:, None]
            first = tl.load(codes_at, mask=real[None, :]).to(tl.float32) - zero[None, :]
            second = tl.load(codes_at + HALF, mask=real[None, :]).to(tl.float32) - zero[None, :]
        x_at = x + row[:, None] * stride_x + block * 2 * HALF + at[None, :]
        x_first = tl.load(x_at, mask=there[:, None], other=0.0)
        x_second = tl.load(x_at + HALF, mask=there[:, None], other=0.0)
        # Differences of codes are whole numbers that 16 bits hold, so only the scale is left to multiply with.
        if UPCAST:
            product = tl.dot(x_first.to(tl.float32), first, input_precision="ieee")
            product += tl.dot(x_second.to(tl.float32), second, input_precision="ieee")
        else:
            product = tl.dot(x_first, first.to(x_first.dtype))
            product += tl.dot(x_second, second.to(x_first.dtype))
        total += product * scale[None, :]
    to = out + row[:, None] * OUT + column[None, :]
    tl.store(to, total.to(out.dtype.element_ty), mask=there[:, None] & real[None, :])
