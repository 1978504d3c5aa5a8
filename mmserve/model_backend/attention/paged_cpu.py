"""Paged attention by the C++ kernel, which reads KV blocks where they lie. Float32 on a CPU."""

from __future__ import annotations

import numpy as np
import torch

from mmserve.config.deployment import KV_BLOCK_TOKENS
from mmserve.model_backend.attention.interface import AttentionInput
from mmserve.model_backend.platforms.cpu import kernels


class PagedCpuAttention:
    """See ``interface.Attention``. ``group_size``: query heads for each key head.

    A row's result depends on its own sequence alone, to the bit: not on chunks, batch or neighbours' KV.
    """

    def __init__(self, group_size: int) -> None:
        self._tile_tokens = max(1, kernels.MAX_TILE_ROWS // group_size)

    def prepare(self, rows: AttentionInput) -> kernels.Tiles:
        """A tile is some consecutive rows of one step."""
        num_tiles = -(-rows.counts // self._tile_tokens)
        step = np.repeat(np.arange(len(rows.counts)), num_tiles)
        first_rows = rows.counts.cumsum() - rows.counts
        skipped = (np.arange(len(step)) - (num_tiles.cumsum() - num_tiles)[step]) * self._tile_tokens
        count = np.minimum(self._tile_tokens, rows.counts[step] - skipped)
        tiles = np.stack((first_rows[step] + skipped, count, rows.starts[step] + skipped, rows.slots[step]), axis=1)
        return kernels.Tiles(*map(torch.from_numpy, (tiles, rows.blocks, rows.kv_slots)))

    def __call__(
        self, q: torch.Tensor, kv: torch.Tensor, layer_kv: torch.Tensor, prepared: kernels.Tiles
    ) -> torch.Tensor:
        return kernels.attention(q, kv, layer_kv, prepared)


def fits(like: torch.Tensor, group_size: int, head_dim: int) -> bool:
    """Can the kernel serve this model here?"""
    return (
        kernels.usable(like)
        and head_dim % kernels.PANEL == 0
        and group_size <= kernels.MAX_TILE_ROWS
        and KV_BLOCK_TOKENS == kernels.BLOCK_TOKENS
    )
