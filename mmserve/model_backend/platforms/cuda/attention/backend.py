"""Paged attention by Triton kernels, which read KV blocks in place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.attention.interface import CAUSAL, AttentionSpec, Mask, StepLimits
from mmserve.model_backend.attention.kv_layout import copy_leading_tokens, token_major_shape
from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu
from mmserve.model_backend.platforms.cuda.attention.metadata import TritonMetadata, TritonMetadataBuilder
from mmserve.model_backend.platforms.cuda.attention.tiling import AttentionTiling, padded
from mmserve.model_backend.platforms.cuda.kernels.paged_prefill import prefill_tiles
from mmserve.model_backend.platforms.cuda.kernels.paged_splits import attend_splits, merge_splits
from mmserve.model_backend.platforms.cuda.kernels.store_kv import store_kv

_LOG2_E = math.log2(math.e)
_MAX_GROUP, _MAX_DIM = 64, 256


class TritonAttention:
    """See ``attention.interface.AttentionBackend``.

    A row's result depends on its own sequence alone, to the bit, and on whether its chunk is short or not
    (``AttentionTiling.short_tokens``): the two kernels add up in different orders. ``num_programs``: of those for short
    chunks, whatever the step.
    """

    block_sizes: Sequence[int] = (16, 32, 64, 128)
    supports_graphs = True
    """Of steps of short chunks alone, until a buffer moves (``StepRecord``)."""

    def __init__(self, spec: AttentionSpec, device: torch.device, tiling: AttentionTiling, num_programs: int) -> None:
        self._spec, self._device, self._tiling, self._num_programs = spec, device, tiling, num_programs
        self._heads = {
            "KV_HEADS": spec.num_kv_heads,
            "GROUP": spec.group_size,
            "DIM": spec.head_dim,
            "PADDED_DIM": padded(spec.head_dim),
            "UPCAST": bool(triton.knobs.runtime.interpret),
        }

    @staticmethod
    def supports(spec: AttentionSpec) -> bool:
        """True if the kernels can compute these heads."""
        return spec.head_dim % 16 == 0 and spec.head_dim <= _MAX_DIM and spec.group_size <= _MAX_GROUP

    def kv_shape(self, num_blocks: int, block_tokens: int) -> tuple[int, ...]:
        return token_major_shape(self._spec, num_blocks, block_tokens)

    def builder(self, limits: StepLimits) -> TritonMetadataBuilder:
        return TritonMetadataBuilder(limits, self._spec, self._tiling, self._device)

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        layer_kv: torch.Tensor,
        metadata: TritonMetadata,
        mask: Mask = CAUSAL,
    ) -> torch.Tensor:
        with current_gpu(q):
            return self._forward(q, kv, layer_kv, metadata, mask)

    def _forward(
        self, q: torch.Tensor, kv: torch.Tensor, layer_kv: torch.Tensor, metadata: TritonMetadata, mask: Mask
    ) -> torch.Tensor:
        width = kv[0].numel()
        store_kv[(len(kv),)](
            kv,
            metadata.record,
            layer_kv,
            kv.stride(0),
            WIDTH=width,
            PADDED_WIDTH=padded(width),
            LARGEST=torch.finfo(layer_kv.dtype).max if layer_kv.dtype is torch.float8_e4m3fn else None,
        )
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if metadata.has_splits:
            self._attend_in_splits(q, layer_kv, metadata, mask, out)
        if metadata.num_tiles:
            self._prefill(q, layer_kv, metadata, mask, out)
        return out

    def _attend_in_splits(
        self, q: torch.Tensor, layer_kv: torch.Tensor, metadata: TritonMetadata, mask: Mask, out: torch.Tensor
    ) -> None:
        sizes, partials, items = self._tiling.splits, metadata.partials, metadata.works[mask.window]
        attend_splits[(self._num_programs,)](
            q,
            layer_kv,
            metadata.record,
            out,
            partials.totals,
            partials.weights,
            q.stride(0),
            self._spec.scale * _LOG2_E,
            (self._spec.soft_cap or 0.0) * _LOG2_E,
            mask.window or 0,
            **self._heads,
            BLOCK_TOKENS=layer_kv.shape[1],
            SPLIT_TOKENS=self._tiling.split_tokens,
            TILE_TOKENS=sizes.tokens,
            ROWS=sizes.rows,
            ITEMS=items,
            WINDOW=mask.window is not None,
            SOFT_CAP=self._spec.soft_cap is not None,
            STAGES=sizes.stages,
            num_warps=sizes.warps,
        )
        merge_splits[(self._num_programs,)](
            partials.totals,
            partials.weights,
            metadata.record,
            out,
            HEADS=self._spec.num_heads,
            DIM=self._spec.head_dim,
            PADDED_DIM=padded(self._spec.head_dim),
            MERGES=items + 1,
        )

    def _prefill(
        self, q: torch.Tensor, layer_kv: torch.Tensor, metadata: TritonMetadata, mask: Mask, out: torch.Tensor
    ) -> None:
        sizes = self._tiling.prefill
        prefill_tiles[(metadata.num_tiles, self._spec.num_kv_heads)](
            q,
            layer_kv,
            metadata.record,
            out,
            q.stride(0),
            self._spec.scale * _LOG2_E,
            (self._spec.soft_cap or 0.0) * _LOG2_E,
            mask.window or 0,
            **self._heads,
            BLOCK_TOKENS=layer_kv.shape[1],
            SEGMENT_TOKENS=self._tiling.segment_tokens,
            TILE_TOKENS=sizes.tokens,
            ROWS=sizes.rows,
            WINDOW=mask.window is not None,
            WHOLE_IMAGES=mask.whole_images and metadata.has_image_ends,
            SOFT_CAP=self._spec.soft_cap is not None,
            STAGES=sizes.stages,
            num_warps=sizes.warps,
        )

    def copy_tokens(self, kv_cache: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
        copy_leading_tokens(kv_cache, copies)
