"""Paged attention in plain torch, on any device: the reference for faster ones.

Grouped-query attention never repeats K and V: the query heads of a group become query rows (decode) or share K and
V through a view with stride 0 (prefill).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from mmserve.config.deployment import KV_BLOCK_TOKENS
from mmserve.model_backend.attention.interface import AttentionInput

_SMALL_TABLE_BLOCKS = 16
"""Rows with a context this short are not worth a group of their own."""


@dataclass(frozen=True)
class DecodeGroup:
    """Consecutive rows of one new token each, of similar context length, computed as one batch."""

    rows: slice
    blocks: torch.Tensor
    """int64 [n * blocks per row]: block tables, padded with any valid block."""
    mask: torch.Tensor
    """[n, 1, 1, tokens]: 0 within the context, -inf beyond, in the model's dtype."""


@dataclass(frozen=True)
class PrefillChunk:
    """Consecutive rows that are consecutive tokens of one sequence."""

    rows: slice
    context: torch.Tensor | None
    """int64 KV slots of all tokens up to the chunk's end; None when the chunk starts the sequence."""
    mask: torch.Tensor | None
    """[1, 1, chunk, context] as in DecodeGroup, causal; None when the chunk starts the sequence."""


@dataclass(frozen=True)
class Layout:
    """One step: where K and V go, decode rows, then prefill chunks."""

    kv_slots: torch.Tensor
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]


class SdpaAttention:
    """See ``interface.Attention``."""

    def prepare(self, rows: AttentionInput) -> Layout:
        return Layout(_to(rows, rows.kv_slots), tuple(_decode_groups(rows)), tuple(_chunks(rows)))

    def __call__(self, q: torch.Tensor, kv: torch.Tensor, layer_kv: torch.Tensor, prepared: Layout) -> torch.Tensor:
        # Finite numbers only: a masked weight of 0 times inf or NaN of a neighbour's block would be NaN.
        kv.nan_to_num_(0.0, 0.0, 0.0)
        slots = layer_kv.flatten(0, 1)
        slots.index_copy_(0, prepared.kv_slots, kv)
        out = torch.empty_like(q)
        for group in prepared.decodes:
            out[group.rows] = _decode(q[group.rows], layer_kv, group)
        for chunk in prepared.chunks:
            kept = kv[chunk.rows] if chunk.context is None else slots.index_select(0, chunk.context)
            out[chunk.rows] = _prefill(q[chunk.rows], kept, chunk)
        return out


def _decode_groups(rows: AttentionInput) -> Iterator[DecodeGroup]:
    """Groups of rows whose block tables differ by less than half, so that padding costs less than the work."""
    lengths, slots = rows.starts[: rows.num_decodes] + 1, rows.slots[: rows.num_decodes]
    num_blocks = -(-lengths // KV_BLOCK_TOKENS)
    first = 0
    while first < len(slots):
        widest = int(num_blocks[first])
        shortest = widest // 2 if widest > _SMALL_TABLE_BLOCKS else 0
        end = first + int(np.count_nonzero(num_blocks[first:] > shortest))
        outside = np.arange(widest * KV_BLOCK_TOKENS) >= lengths[first:end, None]
        yield DecodeGroup(
            rows=slice(first, end),
            blocks=_to(rows, rows.blocks[slots[first:end], :widest].reshape(-1)),
            mask=_mask(torch.from_numpy(outside)[:, None, None], rows.like),
        )
        first = end


def _chunks(rows: AttentionInput) -> Iterator[PrefillChunk]:
    first_row = rows.num_decodes
    for step in range(rows.num_decodes, len(rows.slots)):
        start, count = int(rows.starts[step]), int(rows.counts[step])
        at = slice(first_row, first_row + count)
        first_row += count
        if start == 0:
            yield PrefillChunk(at, None, None)
            continue
        positions = np.arange(start + count)
        blocks = rows.blocks[rows.slots[step], positions // KV_BLOCK_TOKENS]
        context = blocks * KV_BLOCK_TOKENS + positions % KV_BLOCK_TOKENS
        later = torch.ones(count, len(context), dtype=torch.bool).triu_(start + 1)
        yield PrefillChunk(at, context=_to(rows, context), mask=_mask(later[None, None], rows.like))


def _mask(hidden: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    zeros = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill_(hidden.to(like.device), float("-inf"))


def _to(rows: AttentionInput, values: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> torch.Tensor:
    return torch.from_numpy(values).to(rows.like.device)


def _decode(q: torch.Tensor, layer_kv: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
    n, heads, dim = q.shape
    kv_heads = layer_kv.shape[3]
    pages = layer_kv.index_select(0, group.blocks)
    k, v = pages.view(n, -1, 2, kv_heads, dim).permute(2, 0, 3, 1, 4)  # each [n, kv_heads, tokens, dim]
    rows = q.reshape(n, kv_heads, heads // kv_heads, dim)
    return F.scaled_dot_product_attention(rows, k, v, attn_mask=group.mask).reshape(n, heads, dim)


def _prefill(q: torch.Tensor, kv: torch.Tensor, chunk: PrefillChunk) -> torch.Tensor:
    n, heads, dim = q.shape
    kv_heads = kv.shape[2]
    group = heads // kv_heads
    k, v = kv.permute(1, 2, 0, 3)[:, None].expand(2, group, kv_heads, -1, dim)
    rows = q.view(n, kv_heads, group, dim).permute(2, 1, 0, 3)  # [group, kv_heads, n, dim]
    mixed = F.scaled_dot_product_attention(rows, k, v, attn_mask=chunk.mask, is_causal=chunk.mask is None)
    return mixed.permute(2, 1, 0, 3).reshape(n, heads, dim)
