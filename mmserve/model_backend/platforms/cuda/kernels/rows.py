"""Operations on the rows of activations in one launch each: norms, rotation of heads, gates. All sums are float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_rows(
    x, weight, out, stride_x, stride_head, stride_out, stride_out_head, eps, SIZE: tl.constexpr, PADDED: tl.constexpr
):
    """RMSNorm, a program for each head of each row: SIZE numbers that lie next to each other. ``out`` may be ``x``."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, PADDED)
    inside = at < SIZE
    values = tl.load(x + row * stride_x + head * stride_head + at, mask=inside, other=0.0).to(tl.float32)
    result = normed(values, weight, at, inside, eps, SIZE)
    tl.store(out + row * stride_out + head * stride_out_head + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_normed_rows(
    hidden,
    x,
    weight,
    then,
    out,
    stride_hidden,
    stride_x,
    eps,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    NORM: tl.constexpr,
    THEN: tl.constexpr,
):
    """A program a row of SIZE numbers: hidden += RMSNorm(x), without NORM hidden += x; with THEN also
    out = RMSNorm(hidden), by its own weights. Rows of ``out`` lie next to each other."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, PADDED)
    inside = at < SIZE
    addend = tl.load(x + row * stride_x + at, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        addend = normed(addend, weight, at, inside, eps, SIZE)
    rounded = add_to_row(hidden + row * stride_hidden + at, addend, inside)
    if THEN:
        result = normed(rounded, then, at, inside, eps, SIZE)
        tl.store(out + row * SIZE + at, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def normed(values, weight, at, inside, eps, SIZE: tl.constexpr):
    """RMSNorm of a row of SIZE numbers and zeros behind them."""
    scale = tl.rsqrt(tl.sum(values * values, 0) / SIZE + eps)
    return values * scale * tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def add_to_row(to, addend, inside):
    """Returns the sums as they are stored, so that all that read them later see the same numbers."""
    total = (tl.load(to, mask=inside, other=0.0).to(tl.float32) + addend).to(to.dtype.element_ty)
    tl.store(to, total, mask=inside)
    return total.to(tl.float32)


@triton.jit
def rotate_rows(
    x,
    cos,
    sin,
    num_heads,
    stride_x,
    stride_head,
    PAIRS: tl.constexpr,
    PADDED: tl.constexpr,
    HEADS: tl.constexpr,
    ADJACENT: tl.constexpr,
):
    """Turns the first 2 * PAIRS numbers of HEADS heads a program, in place. cos, sin: [rows, PAIRS]."""
    row = tl.program_id(0).to(tl.int64)
    heads, pairs = tl.program_id(1) * HEADS + tl.arange(0, HEADS), tl.arange(0, PADDED)
    inside = (heads < num_heads)[:, None] & (pairs < PAIRS)[None, :]
    base = x + row * stride_x + heads[:, None] * stride_head
    first_at = base + (2 * pairs if ADJACENT else pairs)[None, :]
    second_at = first_at + (1 if ADJACENT else PAIRS)
    first = tl.load(first_at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(second_at, mask=inside, other=0.0).to(tl.float32)
    c = tl.load(cos + row * PAIRS + pairs, mask=pairs < PAIRS, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + row * PAIRS + pairs, mask=pairs < PAIRS, other=0.0).to(tl.float32)[None, :]
    tl.store(first_at, (first * c - second * s).to(x.dtype.element_ty), mask=inside)
    tl.store(second_at, (second * c + first * s).to(x.dtype.element_ty), mask=inside)


@triton.jit
def gate_rows(x, out, stride_x, SIZE: tl.constexpr, COLUMNS: tl.constexpr, GELU: tl.constexpr):
    """out[i] = act(x[i]) * x[SIZE + i], COLUMNS a program. GELU: its approximation by tanh; else SiLU."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < SIZE
    values = gated(x + row * stride_x + at, inside, SIZE, GELU)
    tl.store(out + row * SIZE + at, values.to(out.dtype.element_ty), mask=inside)


@triton.jit
def gated(at, inside, SIZE: tl.constexpr, GELU: tl.constexpr):
    """act(gate) * up of each gate's address; the other number is SIZE behind it. float32, 0 outside."""
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + SIZE, mask=inside, other=0.0).to(tl.float32)
    # 0.5 (1 + tanh(y)) is the logistic function of 2 y.
    inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate) if GELU else gate
    return gate * tl.sigmoid(inner) * up
