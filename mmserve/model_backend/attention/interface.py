"""What an attention implementation is given and must return. Shapes only; knows no model and no sequence state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch


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
class StepLayout:
    """How the T rows of one step belong to sequences: decode rows first, then prefill chunks."""

    kv_slots: torch.Tensor
    """int64 [T]: block * tokens per block + offset, where each row's K and V are kept."""
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]


class Attention(Protocol):
    """Causal attention over the paged KV cache."""

    def __call__(self, q: torch.Tensor, kv: torch.Tensor, layer_kv: torch.Tensor, layout: StepLayout) -> torch.Tensor:
        """Store the new K and V, then attend.

        q: [T, heads, dim]. kv: [T, 2, kv_heads, dim], K before V. layer_kv: [blocks, tokens, 2, kv_heads, dim], the
        layer's cache, changed in place. Returns [T, heads, dim].
        """
        ...
