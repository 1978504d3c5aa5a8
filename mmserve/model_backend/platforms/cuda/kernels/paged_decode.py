"""Attention of one new token of each sequence over the paged KV cache, in splits of a fixed number of tokens.

``decode_splits`` computes (sequence, split) items, ``merge_splits`` adds up the splits of sequences that have several.
Where a split begins depends on nothing but the position in its own sequence, and splits are added in their order, so a
row's bits do not depend on the batch. Both have as many programs as the GPU holds, whatever the step: a program takes
every n-th item, and reads from the device's memory how many there are. So a captured CUDA graph fits steps of any size.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mmserve.model_backend.platforms.cuda.kernels.record import BLOCKS, LENGTHS, section
from mmserve.model_backend.platforms.cuda.kernels.softmax import HIDDEN, attend_tile, mean, no_keys


@triton.jit
def decode_splits(
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
    """q: rows of [KV_HEADS * GROUP, DIM]. layer_kv: [blocks, BLOCK_TOKENS, 2, KV_HEADS, DIM]. ROWS: at least GROUP and
    16. partial_totals: float32 [places, KV_HEADS * GROUP, DIM]; partial_weights: [places, KV_HEADS * GROUP, 2].

    ITEMS: the section of ``record`` with items of four numbers: row, first token of the split, index in BLOCKS of the
    split's first block id, and the place of its result, or -1 where it is the sequence's only split and is written to
    ``out``.
    """
    items, num_items = section(record, ITEMS)
    lengths, _ = section(record, LENGTHS)
    blocks, _ = section(record, BLOCKS)
    token_stride: tl.constexpr = 2 * KV_HEADS * DIM
    heads = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    tile = tl.arange(0, TILE_TOKENS)
    ids = tl.arange(0, SPLIT_TOKENS // BLOCK_TOKENS)
    real_heads = heads < GROUP
    real_dims = dims < DIM
    real = real_heads[:, None] & real_dims[None, :]
    for work in range(tl.program_id(0), num_items * KV_HEADS, tl.num_programs(0)):
        item = items + work // KV_HEADS * 4
        kv_head = work % KV_HEADS
        row = tl.load(item)
        first = tl.load(item + 1)
        table = tl.load(item + 2)
        place = tl.load(item + 3)
        length = tl.load(lengths + row)
        count = tl.minimum(SPLIT_TOKENS, length - first)
        # All ids at once: a loop that loads the ids of its next tile cannot load that tile ahead.
        of_split = tl.load(blocks + table + ids, mask=ids * BLOCK_TOKENS < count, other=0).to(tl.int64)
        own_heads = kv_head * GROUP + heads
        own = own_heads[:, None] * DIM + dims[None, :]
        queries = tl.load(q + row.to(tl.int64) * stride_q + own, mask=real, other=0.0)
        largest, weight, total = no_keys(ROWS, PADDED_DIM)
        begin = 0
        if WINDOW:
            begin = tl.maximum(length - window - first, 0) // TILE_TOKENS * TILE_TOKENS
        for start in tl.range(begin, count, TILE_TOKENS, num_stages=STAGES):
            token = start + tile
            live = token < count
            if WINDOW:
                live = live & (first + token >= length - window)
            at = tl.gather(of_split, token // BLOCK_TOKENS, 0) * BLOCK_TOKENS
            base = layer_kv + (at + token % BLOCK_TOKENS) * token_stride + kv_head * DIM
            keys = tl.load(base[None, :] + dims[:, None], mask=live[None, :] & real_dims[:, None], other=0.0)
            values = tl.load(
                base[:, None] + (KV_HEADS * DIM + dims)[None, :], mask=live[:, None] & real_dims[None, :], other=0.0
            )
            largest, weight, total = attend_tile(
                queries, keys, values, live[None, :], largest, weight, total, scale, soft_cap, SOFT_CAP, UPCAST
            )
        if place < 0:
            to = out + row.to(tl.int64) * (KV_HEADS * GROUP * DIM) + own
            tl.store(to, mean(weight, total).to(out.dtype.element_ty), mask=real)
        else:
            head = place.to(tl.int64) * (KV_HEADS * GROUP) + own_heads
            tl.store(partial_totals + head[:, None] * DIM + dims[None, :], total, mask=real)
            tl.store(partial_weights + head * 2, largest, mask=real_heads)
            tl.store(partial_weights + head * 2 + 1, weight, mask=real_heads)


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
    dims = tl.arange(0, PADDED_DIM)
    real = dims < DIM
    for work in range(tl.program_id(0), num_merges * HEADS, tl.num_programs(0)):
        merge = merges + work // HEADS * 3
        head = work % HEADS
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
