"""Attention of vision towers by a Triton kernel: images of any sizes in one launch, without padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import triton

from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu
from mmserve.model_backend.platforms.cuda.attention.tiling import Tiling, padded
from mmserve.model_backend.platforms.cuda.attention.work import Int32s
from mmserve.model_backend.platforms.cuda.kernels.encoder_attention import encoder_tiles

_KEPT_TILES = 8
"""Batches of images whose tiles stay on the device: layers of a tower use one batch, or alternate between two."""


class EncoderAttention:
    """See ``layers.ops.Ops.encoder_attention``. A row's bits depend on its own sequence alone.

    ``tiling``: ``rows`` of a tile's queries, and ``tokens`` of keys.
    """

    def __init__(self, device: torch.device, tiling: Tiling) -> None:
        self._device, self._tiling = device, tiling
        self._tiles = lru_cache(_KEPT_TILES)(self._tiles_of)

    def __call__(self, qkv: torch.Tensor, num_heads: int, lengths: Sequence[int]) -> torch.Tensor:
        with current_gpu(qkv):
            return self._attend(qkv, num_heads, self._tiles(tuple(lengths)))

    def _attend(self, qkv: torch.Tensor, num_heads: int, tiles: torch.Tensor) -> torch.Tensor:
        size, sizes = qkv.shape[1] // 3, self._tiling
        dim = size // num_heads
        out = torch.empty(len(qkv), size, dtype=qkv.dtype, device=qkv.device)
        encoder_tiles[(len(tiles), num_heads)](
            qkv,
            tiles,
            out,
            dim**-0.5 * math.log2(math.e),
            HEADS=num_heads,
            DIM=dim,
            PADDED_DIM=padded(dim),
            TILE_ROWS=sizes.tokens,
            ROWS=sizes.rows,
            UPCAST=bool(triton.knobs.runtime.interpret),
            STAGES=sizes.stages,
            num_warps=sizes.warps,
        )
        return out

    def _tiles_of(self, lengths: tuple[int, ...]) -> torch.Tensor:
        tiles = torch.from_numpy(encoder_work(lengths, self._tiling.rows))
        return tiles.to(self._device)


def encoder_work(lengths: Sequence[int], tile_rows: int) -> Int32s:
    """[n, 3], see ``kernels.encoder_attention``: tiles of the longest sequences first."""
    counts = np.array(lengths)
    ends = counts.cumsum()
    num_tiles = -(-counts // tile_rows)
    sequence = np.repeat(np.arange(len(counts)), num_tiles)
    begins = (ends - counts)[sequence]
    skipped = (np.arange(len(sequence)) - (num_tiles.cumsum() - num_tiles)[sequence]) * tile_rows
    tiles = np.stack((begins + skipped, begins, ends[sequence]), axis=1).astype(np.int32)
    return tiles[np.argsort(-counts[sequence], kind="stable")]
