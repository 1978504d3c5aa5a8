"""Attention of a few new tokens of each sequence over the paged KV cache, in splits of a fixed number of tokens.

``attend_splits`` computes items, each some neighbouring rows of a sequence and one split of its tokens.
``merge_splits`` adds up the splits of rows that have several. Where a split begins depends on nothing but the
position in its own sequence, and splits are added in their order, so a row's bits depend neither on the batch nor on
the rows beside it. Both have as many programs as the GPU holds, whatever the step: a program takes every n-th item,
and reads from the device's memory how many there are. So a captured CUDA graph fits steps of any lengths.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mmserve.model_backend.platforms.cuda.kernels.record import BLOCKS, section
from mmserve.model_backend.platforms.cuda.kernels.softmax import HIDDEN, attend_tile, mean, no_keys


@triton.jit
def attend_splits(
    q,
    layer_kv,
    record,
    out,
    partial_totals,
    partial_weights,
    stride_q,
    scale,
    soft_cap,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    ITEMS: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    UPCAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """q: rows of [KV_HEADS * GROUP, DIM]. layer_kv: [blocks, BLOCK_TOKENS, 2, KV_HEADS, DIM]. ROWS: tokens times GROUP.
    partial_totals: float32 [places, KV_HEADS * GROUP, DIM]; partial_weights: [places, KV_HEADS * GROUP, 2].

    ITEMS: the section of ``record`` with items of seven numbers: first row, number of rows, position of the first row,
    first token of the split, index in BLOCKS of the split's first block id, place of the first row's result, and how
    many places each row has, one behind the other. Place -1: it is the only split, and is written to ``out``.
    """
    items, num_items = section(record, ITEMS)
    blocks, _ = section(record, BLOCKS)
    token_stride: tl.constexpr = 2 * KV_HEADS * DIM
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    tile = tl.arange(0, TILE_TOKENS)
    ids = tl.arange(0, SPLIT_TOKENS // BLOCK_TOKENS)
    real_dims = dims < DIM
    for work in range(tl.program_id(0), num_items * KV_HEADS, tl.num_programs(0)):
        item = items + work // KV_HEADS * 7
        position = tl.load(item + 2)
        first = tl.load(item + 3)
        table = tl.load(item + 4)
        place = tl.load(item + 5)
        num_rows = tl.load(item + 1)
        token_of_row = rows // GROUP
        real_rows = token_of_row < num_rows
        real = real_rows[:, None] & real_dims[None, :]
        length = position + 1 + token_of_row
        count = tl.minimum(SPLIT_TOKENS, position + num_rows - first)
        # All ids at once: a loop that loads the ids of its next tile cannot load that tile ahead.
        of_split = tl.load(blocks + table + ids, mask=ids * BLOCK_TOKENS < count, other=0).to(tl.int64)
        row = (tl.load(item) + token_of_row).to(tl.int64)
        head = work % KV_HEADS * GROUP + rows % GROUP
        own = head[:, None] * DIM + dims[None, :]
        queries = tl.load(q + row[:, None] * stride_q + own, mask=real, other=0.0)
        largest, weight, total = no_keys(ROWS, PADDED_DIM)
        begin = 0
        if WINDOW:
            begin = tl.maximum(position + 1 - window - first, 0) // TILE_TOKENS * TILE_TOKENS
        for start in tl.range(begin, count, TILE_TOKENS, num_stages=STAGES):
            token = start + tile
            live = token < count
            visible = first + token[None, :] < length[:, None]
            if WINDOW:
                visible = visible & (first + token[None, :] >= length[:, None] - window)
            at = tl.gather(of_split, token // BLOCK_TOKENS, 0) * BLOCK_TOKENS
            base = layer_kv + (at + token % BLOCK_TOKENS) * token_stride + work % KV_HEADS * DIM
            keys = tl.load(base[None, :] + dims[:, None], mask=live[None, :] & real_dims[:, None], other=0.0)
            values = tl.load(
                base[:, None] + (KV_HEADS * DIM + dims)[None, :], mask=live[:, None] & real_dims[None, :], other=0.0
            )
            largest, weight, total = attend_tile(
                queries, keys, values, visible, largest, weight, total, scale, soft_cap, SOFT_CAP, UPCAST
            )
        if place < 0:
            to = out + row[:, None] * (KV_HEADS * GROUP * DIM) + own
            tl.store(to, mean(weight, total).to(out.dtype.element_ty), mask=real)
        else:
            at = (place + token_of_row * tl.load(item + 6)).to(tl.int64) * (KV_HEADS * GROUP) + head
            tl.store(partial_totals + at[:, None] * DIM + dims[None, :], total, mask=real)
            tl.store(partial_weights + at * 2, largest, mask=real_rows)
            tl.store(partial_weights + at * 2 + 1, weight, mask=real_rows)


@triton.jit
def merge_splits(
    partial_totals,
    partial_weights,
    record,
    out,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    MERGES: tl.constexpr,
):
    """MERGES: the section with three numbers for each row: the row, its first place, how many follow one another."""
    merges, num_merges = section(record, MERGES)
    for work in range(tl.program_id(0), num_merges * HEADS, tl.num_programs(0)):
        merge_head(
            partial_totals, partial_weights, merges + work // HEADS * 3, work % HEADS, out, HEADS, DIM, PADDED_DIM
        )


@triton.jit
def merge_head(
    partial_totals, partial_weights, merge, head, out, HEADS: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr
):
    """Of the row at ``merge`` in the section of merges."""
    dims = tl.arange(0, PADDED_DIM)
    real = dims < DIM
    row = tl.load(merge)
    first = tl.load(merge + 1).to(tl.int64)
    count = tl.load(merge + 2)
    largest = HIDDEN + 0.0
    weight = 0.0
    total = tl.zeros([PADDED_DIM], tl.float32)
    for split in range(0, count):
        at = (first + split) * HEADS + head
        split_largest = tl.load(partial_weights + at * 2)
        now = tl.maximum(largest, split_largest)
        shrinks = tl.exp2(largest - now)
        split_shrinks = tl.exp2(split_largest - now)
        split_total = tl.load(partial_totals + at * DIM + dims, mask=real, other=0.0)
        weight = weight * shrinks + tl.load(partial_weights + at * 2 + 1) * split_shrinks
        total = total * shrinks + split_total * split_shrinks
        largest = now
    to = out + (row.to(tl.int64) * HEADS + head) * DIM + dims
    tl.store(to, (total / tl.maximum(weight, 1e-30)).to(out.dtype.element_ty), mask=real)
