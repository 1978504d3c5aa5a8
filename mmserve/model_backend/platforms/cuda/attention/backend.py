"""Paged attention by Triton kernels, which read KV blocks in place."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import torch
import triton

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.attention.interface import CAUSAL, UNTURNED, AttentionSpec, HeadTurn, Mask, StepLimits
from mmserve.model_backend.attention.kv_layout import copy_leading_tokens, token_major_shape
from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu
from mmserve.model_backend.platforms.cuda.attention.metadata import TritonMetadata, TritonMetadataBuilder
from mmserve.model_backend.platforms.cuda.attention.tiling import AttentionTiling, Tiling, padded
from mmserve.model_backend.platforms.cuda.attention.unmerged import Unmerged
from mmserve.model_backend.platforms.cuda.kernels.paged_prefill import prefill_tiles
from mmserve.model_backend.platforms.cuda.kernels.paged_splits import attend_splits
from mmserve.model_backend.platforms.cuda.kernels.turn_and_store import turn_and_store

_LOG2_E = math.log2(math.e)
_MAX_GROUP, _MAX_DIM = 64, 256
_TURNED_HEADS = 8
"""Of one program of ``turn_and_store``."""


class TritonAttention:
    """See ``attention.interface.AttentionBackend``.

    A row's result depends on its own sequence alone, to the bit, and on whether its chunk is short or not
    (``AttentionTiling.short_tokens``): the two kernels add up in different orders. ``num_programs``: of those for short
    chunks, whatever the step.
    """

    block_sizes: Sequence[int] = (16, 32, 64, 128)
    turns_heads = True
    supports_graphs = True

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
        turn: HeadTurn = UNTURNED,
    ) -> torch.Tensor:
        return self.unmerged(q, kv, layer_kv, metadata, mask, turn).merged()

    def unmerged(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        layer_kv: torch.Tensor,
        metadata: TritonMetadata,
        mask: Mask = CAUSAL,
        turn: HeadTurn = UNTURNED,
    ) -> Unmerged:
        """All of ``forward`` but its last launch."""
        with current_gpu(q):
            self._turn_and_store(q, kv, layer_kv, metadata, turn)
            out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            if metadata.has_splits:
                self._attend_in_splits(q, layer_kv, metadata, mask, out)
            if metadata.num_tiles:
                self._prefill(q, layer_kv, metadata, mask, out)
        merges = metadata.works[mask.window] + 1 if metadata.has_splits else None
        return Unmerged(out, metadata.partials, metadata.record, merges, self._num_programs)

    def _turn_and_store(
        self, q: torch.Tensor, kv: torch.Tensor, layer_kv: torch.Tensor, metadata: TritonMetadata, turn: HeadTurn
    ) -> None:
        """Writes over ``q``. ``kv`` stays as it is, and stands behind ``q`` in each row."""
        spec, rotates, norms = self._spec, turn.ropes is not None, turn.q_norm is not None
        behind = kv.storage_offset() - q.storage_offset()
        assert behind == q.shape[1] * spec.head_dim, "K and V stand elsewhere"
        assert len(q) < 2 or kv.stride(0) == q.stride(0), "K and V have rows of their own"
        pairs = turn.cos.shape[-1] if turn.cos is not None and rotates else spec.head_dim // 2
        first_head = 0 if rotates or norms else spec.num_heads
        num_heads = spec.num_heads + 2 * spec.num_kv_heads - first_head
        turn_and_store[(len(q), triton.cdiv(num_heads, _TURNED_HEADS))](
            *(q, metadata.record, layer_kv),
            *(q if each is None else each.contiguous() for each in turn.tensors),
            *(len(q), q.stride(0), turn.eps),
            Q_HEADS=spec.num_heads,
            KV_HEADS=spec.num_kv_heads,
            DIM=spec.head_dim,
            PAIRS=pairs,
            PADDED_PAIRS=padded(pairs),
            PADDED_REST=padded(max(1, spec.head_dim - 2 * pairs)),
            FIRST_HEAD=first_head,
            HEADS=_TURNED_HEADS,
            NORM=norms,
            ROTATE=rotates,
            ADJACENT=turn.adjacent and rotates,
            QUERY_ROPE=turn.ropes.queries if turn.ropes else 0,
            KEY_ROPE=turn.ropes.keys if turn.ropes else 0,
            LARGEST=torch.finfo(layer_kv.dtype).max if layer_kv.dtype is torch.float8_e4m3fn else None,
        )

    def _attend_in_splits(
        self, q: torch.Tensor, layer_kv: torch.Tensor, metadata: TritonMetadata, mask: Mask, out: torch.Tensor
    ) -> None:
        partials = metadata.partials
        attend_splits[(self._num_programs,)](
            **self._arguments(q, layer_kv, metadata, mask, out, self._tiling.splits),
            partial_totals=partials.totals,
            partial_weights=partials.weights,
            SPLIT_TOKENS=self._tiling.split_tokens,
            ITEMS=metadata.works[mask.window],
        )

    def _prefill(
        self, q: torch.Tensor, layer_kv: torch.Tensor, metadata: TritonMetadata, mask: Mask, out: torch.Tensor
    ) -> None:
        prefill_tiles[(metadata.num_tiles, self._spec.num_kv_heads)](
            **self._arguments(q, layer_kv, metadata, mask, out, self._tiling.prefill),
            SEGMENT_TOKENS=self._tiling.segment_tokens,
            WHOLE_IMAGES=mask.whole_images and metadata.has_image_ends,
        )

    def _arguments(
        self,
        q: torch.Tensor,
        layer_kv: torch.Tensor,
        metadata: TritonMetadata,
        mask: Mask,
        out: torch.Tensor,
        sizes: Tiling,
    ) -> dict[str, Any]:
        """Those that both attention kernels have."""
        return {
            "q": q,
            "layer_kv": layer_kv,
            "record": metadata.record,
            "out": out,
            "stride_q": q.stride(0),
            "scale": self._spec.scale * _LOG2_E,
            "soft_cap": (self._spec.soft_cap or 0.0) * _LOG2_E,
            "window": mask.window or 0,
            **self._heads,
            "BLOCK_TOKENS": layer_kv.shape[1],
            "TILE_TOKENS": sizes.tokens,
            "ROWS": sizes.rows,
            "WINDOW": mask.window is not None,
            "SOFT_CAP": self._spec.soft_cap is not None,
            "STAGES": sizes.stages,
            "num_warps": sizes.warps,
        }

    def graph_key(self, metadata: TritonMetadata) -> Hashable | None:
        """Of steps of short chunks alone, whose buffers stay where they are."""
        if metadata.num_tiles or not metadata.has_splits:
            return None
        partials = metadata.partials
        return metadata.record.data_ptr(), partials.totals.data_ptr(), partials.weights.data_ptr()

    def copy_tokens(self, kv_cache: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
        copy_leading_tokens(kv_cache, copies)
