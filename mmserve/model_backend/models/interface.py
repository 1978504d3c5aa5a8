"""What the rest of the backend may ask of a language model, and what a platform needs to compile one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from mmserve.model_backend.attention.interface import CAUSAL, AttentionBackend, AttentionSpec, Mask, RopeRows
from mmserve.model_backend.layers.linear import LinearLayer
from mmserve.model_backend.layers.rotary import Rotary
from mmserve.model_backend.layers.target import Targets


class DecoderLayerWeights(NamedTuple):
    """One layer of a decoder; the norms' weights are [hidden], those of heads [dim]."""

    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    qkv: LinearLayer
    out: LinearLayer
    gate_up: LinearLayer
    down: LinearLayer
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    after_attention_norm: torch.Tensor | None = None
    after_mlp_norm: torch.Tensor | None = None
    """See ``TextSpec.sandwich_norms``."""
    rope: RopeRows | None = RopeRows(0, 0)
    """None if nothing turns."""
    mask: Mask = CAUSAL


class DecoderWeights(NamedTuple):
    """A whole decoder on this rank, of layers of RMSNorm, GQA, RMSNorm, gated MLP, with two more norms or without."""

    layers: Sequence[DecoderLayerWeights]
    hidden_size: int
    intermediate_size: int
    heads: AttentionSpec
    eps: float
    activation: str
    tp_size: int
    rotary: Rotary
    attention: AttentionBackend[Any]
    norm: torch.Tensor
    """[hidden], of the norm before the head."""
    head: LinearLayer
    embedding: LinearLayer
    """Its method is an ``EmbeddingMethod``."""
    embedding_scale: float | None
    """Its rows are multiplied by it."""


class DeepStackRows(NamedTuple):
    """What is added to the hidden states of image tokens after the first layers (DeepStack, Meng et al. 2024)."""

    rows: torch.Tensor
    """int64 [n], each at most once."""
    values: torch.Tensor
    """[layers, n, hidden]: the first is added after layer 0. Fewer layers than the model has."""


class DecoderModel(Protocol):
    """One rank's part of a language model."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]."""
        ...

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        logits_indices: torch.Tensor | None,
        deepstack: DeepStackRows | None = None,
    ) -> torch.Tensor:
        """[T, hidden] -> [S, hidden] of the rows whose logits are needed.

        positions: int64 [axes, T], or [1, T] where all axes agree.
        kv_cache: [layers, *kv_shape]. metadata: of the attention backend. logits_indices: int64 [S], ascending, or None
        for all. Overwrites ``hidden``.
        """
        ...

    def normalized(self, hidden: torch.Tensor) -> torch.Tensor:
        """[S, hidden] -> [S, hidden] on every rank, after the final norm: what the output head reads."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[S, hidden] -> [S, vocab] on rank 0, None on the others."""
        ...

    def targets(self) -> Targets:
        """Canonical tensor name -> the parameter's part."""
        ...

    @property
    def is_capturable(self) -> bool:
        """True if ``forward`` reads no tensor on the host, so that its launches are right for other numbers too."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """All layers, nested ones included, as ``nn.Module`` has it."""
        ...

    def decoder_weights(self) -> DecoderWeights | None:
        """The weights as they are now, if all layers are of the plain kind that ``DecoderWeights`` describes."""
        ...
