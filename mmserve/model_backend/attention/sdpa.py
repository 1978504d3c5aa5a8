"""Paged attention in plain torch, on any device: the reference for faster backends.

It gathers the KV blocks of a step and calls torch's scaled dot product attention. Grouped-query attention repeats
neither K nor V: the query heads of a group become query rows (decode) or share K and V through a view with stride 0
(prefill).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.attention.interface import (
    CAUSAL,
    UNTURNED,
    AttentionInput,
    AttentionSpec,
    HeadTurn,
    Int64s,
    Mask,
    StepLimits,
)
from mmserve.model_backend.attention.kv_layout import copy_leading_tokens, token_major_shape
from mmserve.model_backend.transfers import PlainTransfers, Transfers

_Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
_SMALL_TABLE_BLOCKS = 16
"""Rows with a context of at most so many blocks share one group: a group of their own costs more than padding."""


@dataclass(frozen=True)
class DecodeGroup:
    """Consecutive rows of one new token each, of similar context length, computed as one batch."""

    rows: slice
    blocks: torch.Tensor
    """int64 [n * blocks per row]: block tables, padded with any valid block."""
    masks: Mapping[Mask, torch.Tensor]
    """[n, 1, 1, tokens]: 0 for tokens that a row attends to, -inf for others, in the dtype of the queries."""


@dataclass(frozen=True)
class PrefillChunk:
    """Consecutive rows that are consecutive tokens of one sequence."""

    rows: slice
    context: torch.Tensor | None
    """int64 slot mapping of all tokens up to the chunk's end; None when the chunk starts the sequence."""
    masks: Mapping[Mask, torch.Tensor]
    """[1, 1, chunk, context] as in DecodeGroup. None where a chunk that starts the sequence needs only a causal one."""


@dataclass(frozen=True)
class SdpaMetadata:
    """One step: where K and V are stored, its decode rows, then its prefill chunks."""

    slot_mapping: torch.Tensor
    decodes: tuple[DecodeGroup, ...]
    chunks: tuple[PrefillChunk, ...]


class SdpaAttention:
    """See ``interface.AttentionBackend``. Any block size.

    ``dtype``: of queries and results. K and V are rounded to the dtype of the cache, also those of the step itself.
    """

    block_sizes: Sequence[int] = (16, 32, 64, 128)
    turns_heads = False
    supports_graphs = False

    def __init__(
        self, spec: AttentionSpec, dtype: torch.dtype, device: torch.device, transfers: Transfers | None = None
    ) -> None:
        self._spec, self._dtype = spec, dtype
        self._transfers = transfers or PlainTransfers(device)

    def kv_shape(self, num_blocks: int, block_tokens: int) -> tuple[int, ...]:
        return token_major_shape(self._spec, num_blocks, block_tokens)

    def builder(self, limits: StepLimits) -> SdpaMetadataBuilder:
        return SdpaMetadataBuilder(limits.block_tokens, self._spec.masks, self._dtype, self._transfers)

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        layer_kv: torch.Tensor,
        metadata: SdpaMetadata,
        mask: Mask = CAUSAL,
        turn: HeadTurn = UNTURNED,
    ) -> torch.Tensor:
        assert turn is UNTURNED, "the layer turns the heads"
        # Finite numbers only: a masked weight of 0 times inf or NaN of a neighbour's block would be NaN.
        kv.nan_to_num_(0.0, 0.0, 0.0)
        largest = torch.finfo(layer_kv.dtype).max
        if largest < torch.finfo(kv.dtype).max:  # torch 2.11 makes NaN of numbers that fp8 cannot hold
            kv.clamp_(-largest, largest)
        tokens, stored = layer_kv.flatten(0, 1), kv.to(layer_kv.dtype)
        tokens[metadata.slot_mapping] = stored
        out, attend = torch.empty_like(q), self._attend
        for group in metadata.decodes:
            out[group.rows] = _decode(q[group.rows], layer_kv, group.blocks, group.masks[mask], attend)
        for chunk in metadata.chunks:
            context = stored[chunk.rows] if chunk.context is None else tokens.index_select(0, chunk.context)
            out[chunk.rows] = _prefill(q[chunk.rows], context.to(q.dtype), chunk.masks.get(mask), attend)
        return out

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Causal without a mask."""
        scale, cap = self._spec.scale, self._spec.soft_cap
        if cap is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale)
        scores = cap * torch.tanh(q.float() @ k.float().mT * (scale / cap))
        if mask is None:
            mask = torch.full(scores.shape[-2:], float("-inf"), device=q.device).triu_(1)
        return (scores + mask).softmax(-1).to(v.dtype) @ v

    def graph_key(self, metadata: SdpaMetadata) -> None:
        return None

    def copy_tokens(self, kv_cache: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
        copy_leading_tokens(kv_cache, copies)


class SdpaMetadataBuilder:
    """Makes new tensors for every step, since their shapes depend on the step."""

    def __init__(self, block_tokens: int, masks: Sequence[Mask], dtype: torch.dtype, transfers: Transfers) -> None:
        self._block_tokens, self._masks, self._dtype, self._transfers = block_tokens, masks, dtype, transfers

    def build(self, step: AttentionInput) -> SdpaMetadata:
        return SdpaMetadata(self._tensor(step.slot_mapping), tuple(self._decodes(step)), tuple(self._chunks(step)))

    def _decodes(self, step: AttentionInput) -> Iterator[DecodeGroup]:
        """Groups of rows whose block tables differ by less than half, so that padding costs less than the work."""
        lengths, slots = step.starts[: step.num_decodes] + 1, step.slots[: step.num_decodes]
        num_blocks = -(-lengths // self._block_tokens)
        first = 0
        while first < len(slots):
            widest = int(num_blocks[first])
            shortest = widest // 2 if widest > _SMALL_TABLE_BLOCKS else 0
            end = first + int(np.count_nonzero(num_blocks[first:] > shortest))
            own, num_tokens = lengths[first:end, None] - 1, widest * self._block_tokens
            yield DecodeGroup(
                rows=slice(first, end),
                blocks=self._tensor(step.block_tables[slots[first:end], :widest].reshape(-1)),
                masks={m: self._tensor_of(own, own + 1, num_tokens, m)[:, None, None] for m in self._masks},
            )
            first = end

    def _chunks(self, step: AttentionInput) -> Iterator[PrefillChunk]:
        first_row = step.num_decodes
        for index in range(step.num_decodes, len(step.slots)):
            start, count = int(step.starts[index]), int(step.counts[index])
            rows = slice(first_row, first_row + count)
            first_row += count
            positions = np.arange(start + count)
            blocks = step.block_tables[step.slots[index], positions // self._block_tokens]
            context = blocks * self._block_tokens + positions % self._block_tokens
            own = positions[start:, None]
            image_ends = own + 1 if step.image_ends is None else step.image_ends[rows, None]
            reads_ahead = bool((image_ends > own + 1).any())
            yield PrefillChunk(
                rows,
                context=self._tensor(context) if start else None,
                masks={
                    mask: self._tensor_of(own, image_ends, start + count, mask)[None, None]
                    for mask in self._masks
                    if start or (mask.window or count) < count or (mask.whole_images and reads_ahead)
                },
            )

    def _tensor_of(self, own: Int64s, image_ends: Int64s, num_tokens: int, mask: Mask) -> torch.Tensor:
        """[rows, tokens]. own, image_ends: each row's position, and the one after its image [rows, 1]."""
        positions = np.arange(num_tokens)
        hidden = positions >= (image_ends if mask.whole_images else own + 1)
        if mask.window is not None:
            hidden |= positions <= own - mask.window
        zeros = torch.zeros(hidden.shape, dtype=self._dtype, device=self._transfers.device)
        return zeros.masked_fill_(self._transfers.to_device(torch.from_numpy(hidden)), float("-inf"))

    def _tensor(self, values: Int64s) -> torch.Tensor:
        return self._transfers.to_device(torch.from_numpy(values))


def _decode(
    q: torch.Tensor, layer_kv: torch.Tensor, blocks: torch.Tensor, mask: torch.Tensor, attend: _Attend
) -> torch.Tensor:
    n, heads, dim = q.shape
    kv_heads = layer_kv.shape[3]
    pages = layer_kv.index_select(0, blocks).to(q.dtype)
    k, v = pages.view(n, -1, 2, kv_heads, dim).permute(2, 0, 3, 1, 4)  # each [n, kv_heads, tokens, dim]
    rows = q.reshape(n, kv_heads, heads // kv_heads, dim)
    return attend(rows, k, v, mask).reshape(n, heads, dim)


def _prefill(q: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor | None, attend: _Attend) -> torch.Tensor:
    n, heads, dim = q.shape
    kv_heads = kv.shape[2]
    group = heads // kv_heads
    k, v = kv.permute(1, 2, 0, 3)[:, None].expand(2, group, kv_heads, -1, dim)
    rows = q.view(n, kv_heads, group, dim).permute(2, 1, 0, 3)  # [group, kv_heads, n, dim]
    return attend(rows, k, v, mask).permute(2, 1, 0, 3).reshape(n, heads, dim)
