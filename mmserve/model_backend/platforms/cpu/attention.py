"""Paged attention by the C++ kernel, which reads KV blocks in place. K and V may be bfloat16; all else is float32."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

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

_BLOCK_TOKENS, _MAX_TILE_ROWS, _HEAD_DIM_STEP = 16, 48, 16
"""The kernel's own numbers."""


class PagedCpuMetadata(NamedTuple):
    """One step for the kernel. A tile is a few consecutive rows of one chunk."""

    tiles: torch.Tensor
    """int64 [n, 4]: first row, number of rows, position of the first row, slot."""
    block_tables: torch.Tensor
    """int64 [slots, blocks]."""
    slot_mapping: torch.Tensor
    """int64 [T]."""
    image_ends: torch.Tensor | None
    """int64 [T], see ``AttentionInput.image_ends``."""


class PagedCpuAttention:
    """See ``attention.interface.AttentionBackend``.

    A row's result depends on its own sequence alone, to the bit: not on chunks, batch or the KV of other sequences.
    ``kv_dtype``: of the KV cache. ``rounds``: with a cache in bfloat16 the other inputs of both products, queries and
    the weights of the softmax, are rounded to it as well; without it, keys and values are widened when they are read.
    """

    block_sizes: Sequence[int] = (_BLOCK_TOKENS,)
    turns_heads = False
    supports_graphs = False

    def __init__(
        self,
        kernels: ctypes.CDLL,
        spec: AttentionSpec,
        kv_dtype: torch.dtype = torch.float32,
        *,
        rounds: bool = False,
    ) -> None:
        self._kernels, self._spec, self.kv_dtype = kernels, spec, kv_dtype
        self.cache_format = 0 if kv_dtype is torch.float32 else 1 + rounds
        """The kernels' number for such a cache and its products."""

    @staticmethod
    def supports(spec: AttentionSpec, kv_dtype: torch.dtype) -> bool:
        """True if the kernel can compute these heads with such a cache."""
        if kv_dtype not in (torch.float32, torch.bfloat16) or spec.soft_cap is not None:
            return False
        return spec.head_dim % _HEAD_DIM_STEP == 0 and spec.group_size <= _MAX_TILE_ROWS

    def kv_shape(self, num_blocks: int, block_tokens: int) -> tuple[int, ...]:
        assert block_tokens in self.block_sizes, f"blocks of {block_tokens} tokens"
        return (num_blocks, self._spec.num_kv_heads, 2, block_tokens * self._spec.head_dim)

    def token_major(self, layer_kv: torch.Tensor) -> torch.Tensor:
        """A copy of one layer's cache in the layout of ``kv_layout``, for comparisons."""
        kv_heads, dim = self._spec.num_kv_heads, self._spec.head_dim
        k, v = layer_kv.unbind(2)
        depth = 1 if self.kv_dtype is torch.float32 else 2  # numbers side by side
        keys = k.view(-1, kv_heads, dim // depth, _BLOCK_TOKENS, depth).permute(0, 3, 1, 2, 4)
        values = v.view(-1, kv_heads, _BLOCK_TOKENS // depth, dim, depth).permute(0, 2, 4, 1, 3)
        shape = (-1, _BLOCK_TOKENS, kv_heads, dim)
        return torch.stack((keys.reshape(shape), values.reshape(shape)), dim=2)

    def builder(self, limits: StepLimits) -> PagedCpuMetadataBuilder:
        return PagedCpuMetadataBuilder(max(1, _MAX_TILE_ROWS // self._spec.group_size), limits.max_tokens)

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        layer_kv: torch.Tensor,
        metadata: PagedCpuMetadata,
        mask: Mask = CAUSAL,
        turn: HeadTurn = UNTURNED,
    ) -> torch.Tensor:
        assert turn is UNTURNED, "the layer turns the heads"
        rows, heads, dim = q.shape
        out = torch.empty(rows, heads, dim)
        image_ends = metadata.image_ends if mask.whole_images else None
        self._kernels.mm_attention(
            q.data_ptr(),
            kv.data_ptr(),
            metadata.slot_mapping.data_ptr(),
            layer_kv.data_ptr(),
            self.cache_format,
            metadata.block_tables.data_ptr(),
            metadata.tiles.data_ptr(),
            out.data_ptr(),
            rows,
            len(metadata.tiles),
            q.stride(0),
            metadata.block_tables.shape[1],
            heads,
            kv.shape[2],
            dim,
            mask.window or 0,
            None if image_ends is None else image_ends.data_ptr(),
            self._spec.scale,
        )
        return out

    def graph_key(self, metadata: PagedCpuMetadata) -> None:
        return None

    def copy_tokens(self, kv_cache: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
        # Whole blocks: tokens behind the leading ones are not read before they are written.
        kv_cache[:, [copy.target for copy in copies]] = kv_cache[:, [copy.source for copy in copies]]


class PagedCpuMetadataBuilder:
    """Cuts chunks into tiles. Its buffer of tiles is overwritten by every step."""

    def __init__(self, tile_tokens: int, max_tokens: int) -> None:
        self._tile_tokens = tile_tokens
        self._tiles = np.empty((max_tokens, 4), dtype=np.int64)

    def build(self, step: AttentionInput) -> PagedCpuMetadata:
        """Raises ValueError for more tokens than the limits allow."""
        tiles = self._of_single_rows(step) if len(step.slot_mapping) == len(step.counts) else self._of_chunks(step)
        image_ends = None if step.image_ends is None else torch.from_numpy(step.image_ends)
        tables, slot_mapping = torch.from_numpy(step.block_tables), torch.from_numpy(step.slot_mapping)
        return PagedCpuMetadata(torch.from_numpy(tiles), tables, slot_mapping, image_ends)

    def _of_single_rows(self, step: AttentionInput) -> Int64s:
        """Of a step in which each sequence has one row."""
        tiles = self._room(len(step.counts))
        tiles[:, 0], tiles[:, 1] = np.arange(len(tiles)), 1
        tiles[:, 2], tiles[:, 3] = step.starts, step.slots
        return tiles

    def _of_chunks(self, step: AttentionInput) -> Int64s:
        num_tiles = -(-step.counts // self._tile_tokens)
        chunk = np.repeat(np.arange(len(step.counts)), num_tiles)
        tiles = self._room(len(chunk))
        first_rows = step.counts.cumsum() - step.counts
        skipped = (np.arange(len(chunk)) - (num_tiles.cumsum() - num_tiles)[chunk]) * self._tile_tokens
        tiles[:, 0] = first_rows[chunk] + skipped
        tiles[:, 1] = np.minimum(self._tile_tokens, step.counts[chunk] - skipped)
        tiles[:, 2] = step.starts[chunk] + skipped
        tiles[:, 3] = step.slots[chunk]
        return tiles

    def _room(self, num_tiles: int) -> Int64s:
        if num_tiles > len(self._tiles):
            raise ValueError(f"a step of {num_tiles} tiles; there is room for {len(self._tiles)}")
        return self._tiles[:num_tiles]
