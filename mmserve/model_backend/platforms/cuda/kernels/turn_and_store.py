"""Norms and rotary embedding of a step's heads, and the store of its K and V in the paged KV cache, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from mmserve.model_backend.platforms.cuda.kernels.record import SLOTS, section


@triton.jit(do_not_specialize=["num_rows"])
def turn_and_store(
    heads,
    record,
    layer_kv,
    cos,
    sin,
    q_weight,
    k_weight,
    num_rows,
    stride,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    PADDED_REST: tl.constexpr,
    FIRST_HEAD: tl.constexpr,
    HEADS: tl.constexpr,
    NORM: tl.constexpr,
    ROTATE: tl.constexpr,
    ADJACENT: tl.constexpr,
    QUERY_ROPE: tl.constexpr,
    KEY_ROPE: tl.constexpr,
    LARGEST: tl.constexpr,
):
    """Programs: (rows, tiles of HEADS heads from FIRST_HEAD on). heads: rows of Q_HEADS query heads, then KV_HEADS of K
    and of V, each of DIM numbers. Queries are written in place, K and V to ``layer_kv`` alone; SLOTS says which of its
    rows each row is stored in. Rows behind those of SLOTS, which fill up a captured graph, are left alone.

    A head is two tiles of PAIRS numbers that turn with each other, and the rest. NORM: RMSNorm of queries and keys with
    their weights, before they turn. ROTATE: by cos and sin, [ropes, num_rows, PAIRS]. LARGEST: of the numbers that the
    cache can hold, or None, if that is all of them."""
    slots, count = section(record, SLOTS)
    row = tl.program_id(0).to(tl.int64)
    head = FIRST_HEAD + tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_query, is_value = head < Q_HEADS, head >= Q_HEADS + KV_HEADS
    real = head < tl.where(row < count, Q_HEADS + 2 * KV_HEADS, 0)
    slot = tl.load(slots + row, mask=row < count, other=0).to(tl.int64)
    own = heads + row * stride + head * DIM
    stored = layer_kv + slot * (2 * KV_HEADS * DIM) + (head - Q_HEADS) * DIM
    pair = tl.arange(0, PADDED_PAIRS)
    first_at = 2 * pair if ADJACENT else pair
    second_at = first_at + (1 if ADJACENT else PAIRS)
    rest_at = 2 * PAIRS + tl.arange(0, PADDED_REST)
    in_pairs = real[:, None] & (pair < PAIRS)[None, :]
    in_rest = real[:, None] & (rest_at < DIM)[None, :]
    first = tl.load(own[:, None] + first_at[None, :], mask=in_pairs, other=0.0).to(tl.float32)
    second = tl.load(own[:, None] + second_at[None, :], mask=in_pairs, other=0.0).to(tl.float32)
    rest = tl.load(own[:, None] + rest_at[None, :], mask=in_rest, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(rest * rest, 1)
        scale = tl.where(is_value, 1.0, tl.rsqrt(squares / DIM + eps))[:, None]
        first = first * scale * _weights(q_weight, k_weight, first_at, pair < PAIRS, is_query, is_value)
        second = second * scale * _weights(q_weight, k_weight, second_at, pair < PAIRS, is_query, is_value)
        rest = rest * scale * _weights(q_weight, k_weight, rest_at, rest_at < DIM, is_query, is_value)
    if ROTATE:
        rope = tl.where(is_query, QUERY_ROPE, KEY_ROPE)
        at = ((rope * num_rows + row) * PAIRS)[:, None] + pair[None, :]
        turns = in_pairs & (head < Q_HEADS + KV_HEADS)[:, None]
        c = tl.load(cos + at, mask=turns, other=1.0).to(tl.float32)
        s = tl.load(sin + at, mask=turns, other=0.0).to(tl.float32)
        first, second = first * c - second * s, second * c + first * s
    _write(own, stored, first_at, first, in_pairs, head < Q_HEADS, head >= Q_HEADS, LARGEST)
    _write(own, stored, second_at, second, in_pairs, head < Q_HEADS, head >= Q_HEADS, LARGEST)
    _write(own, stored, rest_at, rest, in_rest, head < Q_HEADS, head >= Q_HEADS, LARGEST)


@triton.jit
def _weights(q_weight, k_weight, at, inside, is_query, is_value):
    """[heads, numbers]: of the norms; 1 for values."""
    of_queries = tl.load(q_weight + at, mask=inside, other=0.0).to(tl.float32)
    of_keys = tl.load(k_weight + at, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_value[:, None], 1.0, tl.where(is_query[:, None], of_queries[None, :], of_keys[None, :]))


@triton.jit
def _write(own, stored, at, values, inside, in_place, in_cache, LARGEST: tl.constexpr):
    """Heads that are written in place, and those that are written in the cache."""
    tl.store(own[:, None] + at[None, :], values.to(own.dtype.element_ty), mask=inside & in_place[:, None])
    if LARGEST is not None:
        values = tl.clamp(values, -LARGEST, LARGEST)
    tl.store(stored[:, None] + at[None, :], values.to(stored.dtype.element_ty), mask=inside & in_cache[:, None])
