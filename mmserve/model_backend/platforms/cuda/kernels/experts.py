"""A mixture of experts in a fixed number of launches, whatever the router chooses, so that a graph can hold it.

A pair is a token and one of the TOP experts that compute it: pair token * TOP + choice. Pairs are sorted by expert and
cut into blocks of rows of one expert. There are as many programs as there can be blocks; those of no block end at once.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def route_rows(
    logits,
    weights,
    experts,
    stride,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    TOP: tl.constexpr,
    TOP_PADDED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
):
    """A program a row: its TOP likeliest experts, the likeliest first, and their probabilities in float32."""
    row = tl.program_id(0).to(tl.int64)
    at, place = tl.arange(0, PADDED), tl.arange(0, TOP_PADDED)
    inside = at < EXPERTS
    scores = tl.load(logits + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    scores = tl.where(inside, scores, -1e30)
    powers = tl.where(inside, tl.exp(scores - tl.max(scores, 0)), 0.0)
    left = tl.where(inside, powers / tl.sum(powers, 0), -1.0)
    chosen, likely = tl.zeros([TOP_PADDED], tl.int32), tl.zeros([TOP_PADDED], tl.float32)
    for choice in tl.static_range(TOP):
        most = tl.max(left, 0)
        # Of equal ones the first. NaN equals nothing: its row still names experts that exist.
        which = tl.minimum(tl.min(tl.where(left == most, at, PADDED), 0), EXPERTS - 1)
        chosen = tl.where(place == choice, which, chosen)
        likely = tl.where(place == choice, most, likely)
        left = tl.where(at == which, -1.0, left)
    if RENORMALIZE:
        likely = likely / tl.sum(likely, 0)
    tl.store(weights + row * TOP + place, likely, mask=place < TOP)
    tl.store(experts + row * TOP + place, chosen, mask=place < TOP)


@triton.jit(do_not_specialize=["num_pairs", "max_blocks"])
def sort_pairs(
    experts,
    order,
    blocks,
    num_pairs,
    max_blocks,
    EXPERTS: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """A program an expert: writes its pairs, ascending, to ``order``, behind those of the experts before it.

    ``blocks``: of each block its expert, its first place in ``order``, and how many of its ROWS rows there are; 0 for
    blocks that are not needed.
    """
    expert = tl.program_id(0)
    every, at = tl.arange(0, PADDED), tl.arange(0, TILE)
    counts = tl.zeros([PADDED], tl.int32)
    for start in tl.range(0, num_pairs, TILE):
        found = tl.load(experts + start + at, mask=start + at < num_pairs, other=-1)
        counts += tl.sum((found[:, None] == every[None, :]).to(tl.int32), 0)
    needed = (counts + ROWS - 1) // ROWS
    first = tl.sum(tl.where(every < expert, counts, 0), 0)
    block = tl.sum(tl.where(every < expert, needed, 0), 0)
    count = tl.sum(tl.where(every == expert, counts, 0), 0)
    to = first
    for start in tl.range(0, num_pairs, TILE):
        found = tl.load(experts + start + at, mask=start + at < num_pairs, other=-1)
        mine = (found == expert).to(tl.int32)
        tl.store(order + to + tl.cumsum(mine, 0) - mine, start + at, mask=mine > 0)
        to += tl.sum(mine, 0)
    for done in tl.range(0, count, ROWS):
        record = blocks + 3 * (block + done // ROWS)
        tl.store(record, expert)
        tl.store(record + 1, first + done)
        tl.store(record + 2, tl.minimum(count - done, ROWS))
    for unused in tl.range(tl.sum(needed, 0) + expert, max_blocks, EXPERTS):
        tl.store(blocks + 3 * unused + 2, 0)


@triton.jit
def multiply_pairs(
    x,
    weights,
    order,
    blocks,
    out,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    TOP: tl.constexpr,
    OF_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    UPCAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Rows times their expert's matrix; weights: [experts, OUT, IN]. Programs: (tiles of COLUMNS outputs, blocks).

    OF_TOKENS: a row of ``x`` for each token, and one of ``out`` for each pair as they are sorted. Else a row of ``x``
    for each pair as they are sorted, and one of ``out`` for each pair in its own place.
    """
    record = blocks + 3 * tl.program_id(1)
    count = tl.load(record + 2)
    if count > 0:
        expert, first = tl.load(record).to(tl.int64), tl.load(record + 1)
        at, inner = tl.arange(0, ROWS), tl.arange(0, INNER)
        there = at < count
        place = (first + at).to(tl.int64)
        pair = tl.load(order + place, mask=there, other=0).to(tl.int64)
        source = pair // TOP if OF_TOKENS else place
        target = place if OF_TOKENS else pair
        column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        real = column < OUT
        x_at = x + source[:, None] * IN + inner[None, :]
        weights_at = weights + expert * (OUT * IN) + column[None, :].to(tl.int64) * IN + inner[:, None]
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for step in tl.range(0, (IN + INNER - 1) // INNER, num_stages=STAGES):
            inside = inner < IN - step * INNER
            left = tl.load(x_at + step * INNER, mask=there[:, None] & inside[None, :], other=0.0)
            right = tl.load(weights_at + step * INNER, mask=inside[:, None] & real[None, :], other=0.0)
            if UPCAST:
                total += tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
            else:
                total += tl.dot(left, right)
        to = out + target[:, None] * OUT + column[None, :]
        tl.store(to, total.to(out.dtype.element_ty), mask=there[:, None] & real[None, :])


@triton.jit
def add_pairs(
    results,
    weights,
    residual,
    out,
    SIZE: tl.constexpr,
    TOP: tl.constexpr,
    COLUMNS: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    """out = residual + the weighted results of a token's pairs, in the order of its choices, rounded once.

    Programs: (tokens, tiles of COLUMNS numbers). ``out`` may be ``residual``.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = at < SIZE
    total = tl.zeros([COLUMNS], tl.float32)
    for choice in tl.static_range(TOP):
        pair = row * TOP + choice
        result = tl.load(results + pair * SIZE + at, mask=inside, other=0.0).to(tl.float32)
        total += result * tl.load(weights + pair)
    if RESIDUAL:
        total += tl.load(residual + row * SIZE + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + at, total.to(out.dtype.element_ty), mask=inside)
