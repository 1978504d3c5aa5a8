"""Paged attention by FlashInfer, which is planned once for each step and mask. No GPU has run this yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.attention.interface import (
    CAUSAL,
    UNTURNED,
    AttentionInput,
    AttentionSpec,
    HeadTurn,
    Mask,
    StepLimits,
)
from mmserve.model_backend.attention.kv_layout import copy_leading_tokens, token_major_shape
from mmserve.model_backend.platforms.cuda.flashinfer.arguments import Pages, pages_of, window_left
from mmserve.model_backend.transfers import HostCopy, Transfers

_WORKSPACE_NBYTES = 128 << 20
_LAYOUT = "NHD"
"""Of keys, and of values: [pages, tokens, heads, dim]."""
_KERNELS = "fa2"
"""FlashInfer's own for all GPUs from Ampere on; they read pages at any stride."""
_TENSOR_CORES_FROM_GROUP = 4
"""Query heads for each key head from which its prefill kernels decode faster than its decode kernels."""
_STEPS_IN_FLIGHT = 3
"""A plan lies in pinned memory until it is copied, and two steps are in flight at most."""


@dataclass(frozen=True)
class FlashInferMetadata:
    """One step: where K and V are stored, and planned wrappers for its rows of one token and for its prompts."""

    slot_mapping: torch.Tensor
    num_decodes: int
    decodes: Mapping[Mask, Any]
    prompts: Mapping[Mask, Any]


class FlashInferAttention:
    """See ``attention.interface.AttentionBackend``. ``library``: the module ``flashinfer``."""

    block_sizes: Sequence[int] = (16, 32, 64)
    turns_heads = False
    supports_graphs = False

    def __init__(self, library: Any, spec: AttentionSpec, dtype: torch.dtype, transfers: Transfers) -> None:
        self._library, self._spec, self._dtype, self._transfers = library, spec, dtype, transfers

    def kv_shape(self, num_blocks: int, block_tokens: int) -> tuple[int, ...]:
        return token_major_shape(self._spec, num_blocks, block_tokens)

    def builder(self, limits: StepLimits) -> FlashInferBuilder:
        return FlashInferBuilder(self._library, self._spec, self._dtype, limits.block_tokens, self._transfers)

    def graph_key(self, metadata: FlashInferMetadata) -> None:
        return None

    def forward(
        self,
        q: torch.Tensor,
        kv: torch.Tensor,
        layer_kv: torch.Tensor,
        metadata: FlashInferMetadata,
        mask: Mask = CAUSAL,
        turn: HeadTurn = UNTURNED,
    ) -> torch.Tensor:
        assert turn is UNTURNED, "the layer turns the heads"
        kv.nan_to_num_(0.0, 0.0, 0.0)  # a neighbour's block must not be spoilt
        layer_kv.flatten(0, 1)[metadata.slot_mapping] = kv
        pages = layer_kv[:, :, 0], layer_kv[:, :, 1]  # views of one layout and equal strides
        q, num_decodes = q.contiguous(), metadata.num_decodes
        out = torch.empty_like(q)
        if num_decodes:
            metadata.decodes[mask].run(q[:num_decodes], pages, out=out[:num_decodes])
        if metadata.prompts:
            metadata.prompts[mask].run(q[num_decodes:], pages, out=out[num_decodes:])
        return out

    def copy_tokens(self, kv_cache: torch.Tensor, copies: Sequence[BlockCopy]) -> None:
        copy_leading_tokens(kv_cache, copies)


class _Wrappers:
    """Of one step in flight, by mask."""

    def __init__(self, library: Any, spec: AttentionSpec, device: torch.device, workspace: torch.Tensor) -> None:
        self.decodes = {
            mask: library.BatchDecodeWithPagedKVCacheWrapper(
                workspace, _LAYOUT, use_tensor_cores=spec.group_size >= _TENSOR_CORES_FROM_GROUP, backend=_KERNELS
            )
            for mask in spec.masks
        }
        self.prompts = {
            mask: library.BatchPrefillWithPagedKVCacheWrapper(workspace, _LAYOUT, backend=_KERNELS)
            for mask in spec.masks
        }
        self.planned: HostCopy | None = None


class FlashInferBuilder:
    """Owns the wrappers. The workspace is shared: attention of one step follows that of another on one stream."""

    def __init__(
        self, library: Any, spec: AttentionSpec, dtype: torch.dtype, block_tokens: int, transfers: Transfers
    ) -> None:
        self._spec, self._dtype, self._block_tokens, self._transfers = spec, dtype, block_tokens, transfers
        device = transfers.device
        workspace = torch.zeros(_WORKSPACE_NBYTES, dtype=torch.uint8, device=device)
        self._turns = [_Wrappers(library, spec, device, workspace) for _ in range(_STEPS_IN_FLIGHT)]

    def build(self, step: AttentionInput) -> FlashInferMetadata:
        wrappers = self._turns.pop(0)
        self._turns.append(wrappers)
        if wrappers.planned is not None:
            wrappers.planned.wait()
        slot_mapping = self._transfers.to_device(torch.from_numpy(step.slot_mapping))
        num_decodes, num_chunks = step.num_decodes, len(step.slots)
        if num_decodes:
            self._plan_decodes(wrappers, pages_of(step, 0, num_decodes, self._block_tokens))
        if num_chunks > num_decodes:
            self._plan_prompts(wrappers, pages_of(step, num_decodes, num_chunks, self._block_tokens))
        wrappers.planned = self._transfers.to_host(slot_mapping[:0])
        return FlashInferMetadata(
            slot_mapping, num_decodes, wrappers.decodes, wrappers.prompts if num_chunks > num_decodes else {}
        )

    def _plan_decodes(self, wrappers: _Wrappers, pages: Pages) -> None:
        indices = self._transfers.to_device(torch.from_numpy(pages.indices))
        for mask, wrapper in wrappers.decodes.items():
            wrapper.plan(
                torch.from_numpy(pages.indptr),  # on the host, where plans are made
                indices,
                torch.from_numpy(pages.last_page_len),
                *self._sizes(),
                **self._settings(mask),
            )

    def _plan_prompts(self, wrappers: _Wrappers, pages: Pages) -> None:
        indices = self._transfers.to_device(torch.from_numpy(pages.indices))
        for mask, wrapper in wrappers.prompts.items():
            wrapper.plan(
                torch.from_numpy(pages.query_indptr),
                torch.from_numpy(pages.indptr),
                indices,
                torch.from_numpy(pages.last_page_len),
                *self._sizes(),
                causal=True,  # the last query stands at the last token
                **self._settings(mask),
            )

    def _sizes(self) -> tuple[int, int, int, int]:
        spec = self._spec
        return spec.num_heads, spec.num_kv_heads, spec.head_dim, self._block_tokens

    def _settings(self, mask: Mask) -> dict[str, Any]:
        return {
            "window_left": window_left(mask),
            "logits_soft_cap": self._spec.soft_cap,
            "sm_scale": self._spec.scale,
            "q_data_type": self._dtype,
            "kv_data_type": self._dtype,
        }
