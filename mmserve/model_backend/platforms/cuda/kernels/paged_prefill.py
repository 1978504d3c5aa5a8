"""Attention of many consecutive tokens of a sequence over the paged KV cache.

A program computes a tile of rows: some tokens, each with all query heads of one key head, so that the group reads keys
once. Keys are read in tiles that begin at multiples of their size, so a row's bits do not depend on its chunk.
The block ids of a segment of tokens are loaded before its tiles: a loop that loads the ids of its next tile cannot load
that tile ahead.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mmserve.model_backend.platforms.cuda.kernels.record import BLOCKS, IMAGE_ENDS, TILES, section
from mmserve.model_backend.platforms.cuda.kernels.softmax import attend_tile, mean, no_keys


@triton.jit
def prefill_tiles(
    q,
    layer_kv,
    record,
    out,
    stride_q,
    scale,
    soft_cap,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    SEGMENT_TOKENS: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW: tl.constexpr,
    WHOLE_IMAGES: tl.constexpr,
    SOFT_CAP: tl.constexpr,
    UPCAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """q, layer_kv: as in ``paged_splits``. Programs: (tiles, KV_HEADS). A tile has ROWS // GROUP tokens at most.

    TILES has six numbers for each tile: first row, number of tokens, position of the first, index in BLOCKS of the
    sequence's first block id, and the position after the last key that a row of it sees, without and with whole images.
    IMAGE_ENDS (``AttentionInput``) is read with WHOLE_IMAGES alone.
    """
    tiles, _ = section(record, TILES)
    blocks, _ = section(record, BLOCKS)
    token_stride: tl.constexpr = 2 * KV_HEADS * DIM
    kv_head = tl.program_id(1)
    tile = tiles + tl.program_id(0) * 6
    first_row = tl.load(tile)
    count = tl.load(tile + 1)
    position = tl.load(tile + 2)
    table = tl.load(tile + 3)
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, PADDED_DIM)
    keys_of_tile = tl.arange(0, TILE_TOKENS)
    token = rows // GROUP
    real_rows = token < count
    real_dims = dims < DIM
    real = real_rows[:, None] & real_dims[None, :]
    row = (first_row + token).to(tl.int64)
    own = (kv_head * GROUP + rows % GROUP)[:, None] * DIM + dims[None, :]
    queries = tl.load(q + row[:, None] * stride_q + own, mask=real, other=0.0)
    own_position = position + token
    if WHOLE_IMAGES:
        end = tl.load(tile + 5)
        image_ends, _ = section(record, IMAGE_ENDS)
        ends = tl.load(image_ends + row, mask=real_rows, other=0)
    else:
        end = tl.load(tile + 4)
        ends = own_position + 1
    begin = 0
    if WINDOW:
        begin = tl.maximum(position - window + 1, 0) // SEGMENT_TOKENS * SEGMENT_TOKENS
    ids = tl.arange(0, SEGMENT_TOKENS // BLOCK_TOKENS)
    largest, weight, total = no_keys(ROWS, PADDED_DIM)
    for segment in range(begin, end, SEGMENT_TOKENS):
        left = tl.minimum(SEGMENT_TOKENS, end - segment)
        at = blocks + table + segment // BLOCK_TOKENS + ids
        of_segment = tl.load(at, mask=ids * BLOCK_TOKENS < left, other=0).to(tl.int64)
        first = 0
        if WINDOW:
            first = tl.maximum(position - window + 1 - segment, 0) // TILE_TOKENS * TILE_TOKENS
        for start in tl.range(first, left, TILE_TOKENS, num_stages=STAGES):
            token_of_key = start + keys_of_tile
            live = token_of_key < left
            block = tl.gather(of_segment, token_of_key // BLOCK_TOKENS, 0)
            base = layer_kv + (block * BLOCK_TOKENS + token_of_key % BLOCK_TOKENS) * token_stride + kv_head * DIM
            keys = tl.load(base[None, :] + dims[:, None], mask=live[None, :] & real_dims[:, None], other=0.0)
            values = tl.load(
                base[:, None] + (KV_HEADS * DIM + dims)[None, :], mask=live[:, None] & real_dims[None, :], other=0.0
            )
            key = segment + token_of_key
            visible = key[None, :] < ends[:, None]
            if WINDOW:
                visible = visible & (key[None, :] > own_position[:, None] - window)
            largest, weight, total = attend_tile(
                queries, keys, values, visible, largest, weight, total, scale, soft_cap, SOFT_CAP, UPCAST
            )
    to = out + row[:, None] * (KV_HEADS * GROUP * DIM) + own
    tl.store(to, mean(weight, total).to(out.dtype.element_ty), mask=real)
