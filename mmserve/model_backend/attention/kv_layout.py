"""The token-major layout of a KV cache: [blocks, tokens, 2 (K, V), kv_heads, dim]. K and V of a token are adjacent."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.attention.interface import AttentionSpec


def token_major_shape(spec: AttentionSpec, num_blocks: int, block_tokens: int) -> tuple[int, ...]:
    """Shape of one layer's cache."""
    return (num_blocks, block_tokens, 2, spec.num_kv_heads, spec.head_dim)


def copy_leading_tokens(kv_cache: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
    """See ``AttentionBackend.copy_tokens``. kv_cache: [layers, blocks, tokens, 2, kv_heads, dim]."""
    sources = [kv_cache[:, copy.source, : copy.num_tokens].clone() for copy in copies]
    for copy, tokens in zip(copies, sources, strict=True):
        kv_cache[:, copy.target, : copy.num_tokens] = tokens
