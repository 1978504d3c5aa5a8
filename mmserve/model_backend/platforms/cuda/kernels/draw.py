"""Draws a token of each row of logits, with the numbers of ``platforms.sampling`` and ``platforms.gumbel`` to the bit.

Each operation on floats is rounded by itself: launch it with ``enable_fp_fusion=False``.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _weights(x, peak, scale):
    t = tl.maximum((x - peak) * scale, -64.0)
    n = (t + 12582912.0) - 12582912.0  # the nearest whole number
    r = t - n
    y = r * 1.535336196e-04
    y = (y + 1.339887502e-03) * r
    y = (y + 9.618436918e-03) * r
    y = (y + 5.550332367e-02) * r
    y = (y + 2.402264774e-01) * r
    y = (y + 6.931471825e-01) * r
    y = (y + 1.0) * ((n.to(tl.int32) + (127 + 42)) << 23).to(tl.float32, bitcast=True)
    return tl.where(y < 8388608.0, (y + 8388608.0) - 8388608.0, y)


@triton.jit
def _exponential(tokens, low, high):
    x = tokens.to(tl.uint32) * 0x9E3779B1 + low
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = ((x ^ (x >> 15)) + high) * 0x846CA68B
    bits = ((x ^ (x >> 16)) >> 1).to(tl.int32)
    u = (bits.to(tl.float32) + 0.5) * 4.656612873077393e-10
    rest = ((0x7FFFFFFF - bits).to(tl.float32) + 0.5) * 4.656612873077393e-10
    number = rest.to(tl.int32, bitcast=True)
    n = (number - 0x3F400000) >> 23
    m = (number - (n << 23)).to(tl.float32, bitcast=True)
    small = bits < 0x20000000
    f = tl.where(small, -u, m - 1.0)
    y = f * 7.806575298e-02
    y = (y + -1.742292643e-01) * f
    y = (y + 2.163247317e-01) * f
    y = (y + -2.427236140e-01) * f
    y = (y + 2.881915271e-01) * f
    y = (y + -3.605759144e-01) * f
    y = (y + 4.809020758e-01) * f
    y = (y + -7.213484645e-01) * f
    y = (y + 1.442695022e00) * f
    return -(y + tl.where(small, 0, n).to(tl.float32))


@triton.jit
def _floor(weights, size, least, needed, SUM: tl.constexpr, BLOCK: tl.constexpr):
    """The largest number from which on the weights of at least ``least`` are ``needed`` in number, or in sum. Each pass
    finds four bits of it, by the sums from 16 candidates on."""
    at, sixteen = tl.arange(0, BLOCK), tl.arange(0, 16)
    floor = tl.zeros((), tl.int32)
    for turn in range(8):
        shift = tl.maximum(27 - 4 * turn, 0)
        candidates = floor + (sixteen << shift)
        found = tl.zeros((16,), tl.int64)
        for first in range(0, size, BLOCK):
            w = tl.load(weights + first + at, mask=first + at < size, other=0.0)
            w = tl.where(w >= least, w, 0.0)
            amount = w.to(tl.int64) if SUM else (w >= 0.0).to(tl.int64) * (first + at < size).to(tl.int64)
            kept = w.to(tl.int32, bitcast=True)[:, None] >= candidates[None, :]
            found += tl.sum(tl.where(kept, amount[:, None], 0), 0)
        enough = (found >= needed) & ((turn < 7) | (sixteen < 8))  # the last pass has three bits
        floor += tl.max(tl.where(enough, sixteen, 0), 0) << shift
    return tl.where(needed > 0, floor, 0).to(tl.float32, bitcast=True)


@triton.jit
def _drawn(own, draw, size, peak, scale, TOP_K: tl.constexpr, TOP_P: tl.constexpr, BLOCK: tl.constexpr):
    """The token of one row, whose logits become their weights."""
    at = tl.arange(0, BLOCK)
    for first in range(0, size, BLOCK):
        x = tl.load(own + first + at, mask=first + at < size, other=float("-inf"))
        tl.store(own + first + at, _weights(x, peak, scale), mask=first + at < size)
    tl.debug_barrier()  # other threads read them
    cut = tl.full((), 1.0, tl.float32)
    if TOP_K:
        top_k = tl.load(draw + 1).to(tl.int64)
        if top_k > 0:
            cut = tl.maximum(cut, _floor(own, size, 0.0, top_k, False, BLOCK))
    if TOP_P:
        share = tl.load(draw + 2)
        if share < 1.0:
            total = tl.zeros((), tl.int64)
            for first in range(0, size, BLOCK):
                w = tl.load(own + first + at, mask=first + at < size, other=0.0)
                total += tl.sum(tl.where(w >= cut, w, 0.0).to(tl.int64), 0)
            needed = tl.maximum((total.to(tl.float64) * share).to(tl.int64), 1)
            cut = tl.maximum(cut, _floor(own, size, cut, needed, True, BLOCK))
    cut = tl.maximum(cut, tl.load(draw + 3).to(tl.float32))
    low, high = tl.load(draw + 4).to(tl.int64).to(tl.uint32), tl.load(draw + 5).to(tl.int64).to(tl.uint32)
    best, token = tl.full((), -1.0, tl.float32), tl.zeros((), tl.int32)
    for first in range(0, size, BLOCK):
        w = tl.load(own + first + at, mask=first + at < size, other=0.0)
        score = tl.where(w >= cut, tl.div_rn(w, _exponential(first + at, low, high)), -1.0)
        highest = tl.max(score, 0)
        winner = tl.min(tl.where(score == highest, first + at, size), 0)
        token = tl.where(highest > best, winner, token)
        best = tl.maximum(best, highest)
    return token


@triton.jit(do_not_specialize=["stride", "size"])
def draw_rows(logits, numbers, chosen, stride, size, TOP_K: tl.constexpr, TOP_P: tl.constexpr, BLOCK: tl.constexpr):
    """A program a row. ``logits``: float32, overwritten by their weights. ``numbers``: float64 [rows, 6], of
    ``sampling.Draw``. ``chosen``: int64. TOP_K, TOP_P: some row has this cut."""
    row = tl.program_id(0).to(tl.int64)
    own, draw, at = logits + row * stride, numbers + row * 6, tl.arange(0, BLOCK)
    peak = tl.full((), float("-inf"), tl.float32)
    for first in range(0, size, BLOCK):
        x = tl.load(own + first + at, mask=first + at < size, other=float("-inf"))
        peak = tl.maximum(peak, tl.max(x, 0))
    token = _drawn(own, draw, size, peak, tl.load(draw).to(tl.float32), TOP_K, TOP_P, BLOCK)
    tl.store(chosen + row, token.to(tl.int64))


@triton.jit(do_not_specialize=["stride", "size"])
def choose_rows(logits, numbers, chosen, stride, size, NOT_FINITE: tl.constexpr, BLOCK: tl.constexpr):
    """As ``draw_rows``, and: a row whose scale is 0 takes its largest logit, the first of equal ones; one with a logit
    that is not finite takes NOT_FINITE. Which cuts a row has is read from its numbers, so one program does for all."""
    row = tl.program_id(0).to(tl.int64)
    own, draw, at = logits + row * stride, numbers + row * 6, tl.arange(0, BLOCK)
    peak, token, bad = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.int32), tl.zeros((), tl.int32)
    for first in range(0, size, BLOCK):
        inside = first + at < size
        x = tl.load(own + first + at, mask=inside, other=float("-inf"))
        bad = tl.maximum(bad, tl.max((inside & ~(tl.abs(x) < float("inf"))).to(tl.int32), 0))
        highest = tl.max(x, 0)
        winner = tl.min(tl.where(x == highest, first + at, size), 0)
        token = tl.where(highest > peak, winner, token)
        peak = tl.maximum(peak, highest)
    scale = tl.load(draw).to(tl.float32)
    if (scale > 0.0) & (bad == 0):
        token = _drawn(own, draw, size, peak, scale, True, True, BLOCK)
    tl.store(chosen + row, tl.where(bad > 0, NOT_FINITE, token).to(tl.int64))
