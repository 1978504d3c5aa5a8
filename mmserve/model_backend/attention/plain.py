"""Paged attention in plain torch, on any device: the reference for faster ones.

Grouped-query attention never repeats K and V: the query heads of a group become query rows (decode) or share K and
V through a view with stride 0 (prefill).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mmserve.model_backend.attention.interface import DecodeGroup, PrefillChunk, StepLayout


def plain_attention(q: torch.Tensor, kv: torch.Tensor, layer_kv: torch.Tensor, layout: StepLayout) -> torch.Tensor:
    """See ``interface.Attention``."""
    # Finite numbers only: a masked weight of 0 times inf or NaN of a neighbour's block would be NaN.
    kv.nan_to_num_(0.0, 0.0, 0.0)
    slots = layer_kv.flatten(0, 1)
    slots.index_copy_(0, layout.kv_slots, kv)
    out = torch.empty_like(q)
    for group in layout.decodes:
        out[group.rows] = _decode(q[group.rows], layer_kv, group)
    for chunk in layout.chunks:
        kept = kv[chunk.rows] if chunk.context is None else slots.index_select(0, chunk.context)
        out[chunk.rows] = _prefill(q[chunk.rows], kept, chunk)
    return out


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
