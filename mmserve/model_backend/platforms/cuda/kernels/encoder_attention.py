"""Attention of a vision tower: each row attends to all rows of its own sequence (an image, or a window of one)."""

from __future__ import annotations

import triton
import triton.language as tl

from mmserve.model_backend.platforms.cuda.kernels.softmax import attend_tile, mean, no_keys


@triton.jit
def encoder_tiles(
    qkv,
    tiles,
    out,
    scale,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    UPCAST: tl.constexpr,
    STAGES: tl.constexpr,
):
    """qkv: rows of [3, HEADS, DIM]. Programs: (tiles, HEADS). tiles: int32 [n, 3]: the tile's first row, and the first
    row and the end of its sequence. ROWS: of a tile at most. TILE_ROWS: keys that are read together."""
    size: tl.constexpr = HEADS * DIM
    tile = tiles + tl.program_id(0) * 3
    first = tl.load(tile)
    begin = tl.load(tile + 1)
    end = tl.load(tile + 2)
    dims = tl.arange(0, PADDED_DIM)
    real_dims = dims < DIM
    head = tl.program_id(1) * DIM + dims
    row = first + tl.arange(0, ROWS)
    real = (row < end)[:, None] & real_dims[None, :]
    row_at = row.to(tl.int64)[:, None]
    queries = tl.load(qkv + row_at * (3 * size) + head[None, :], mask=real, other=0.0)
    keys_of_tile = tl.arange(0, TILE_ROWS)
    largest, weight, total = no_keys(ROWS, PADDED_DIM)
    for start in tl.range(begin, end, TILE_ROWS, num_stages=STAGES):
        key = start + keys_of_tile
        live = key < end
        key_at = qkv + key.to(tl.int64) * (3 * size)
        keys = tl.load(key_at[None, :] + (size + head)[:, None], mask=live[None, :] & real_dims[:, None], other=0.0)
        values = tl.load(
            key_at[:, None] + (2 * size + head)[None, :], mask=live[:, None] & real_dims[None, :], other=0.0
        )
        largest, weight, total = attend_tile(
            queries, keys, values, live[None, :], largest, weight, total, scale, 0.0, False, UPCAST
        )
    tl.store(out + row_at * size + head[None, :], mean(weight, total).to(out.dtype.element_ty), mask=real)
