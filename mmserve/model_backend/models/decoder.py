"""The decoder of Llama (Touvron et al. 2023) and its many relatives, with what they add as options of ``TextSpec``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionSpec
from mmserve.model_backend.layers.attention import SelfAttention
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.embedding import VocabParallelEmbedding
from mmserve.model_backend.layers.mlp import GatedMlp
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.rotary import Angles, Rotary
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.models.interface import DecoderLayerWeights, DecoderWeights


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(
        self,
        spec: TextSpec,
        backend: AttentionBackend[Any],
        *,
        rope: int | None,
        window: int | None,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self.attention_norm = RmsNorm("input_layernorm", spec.hidden_size, spec.rms_eps, context=context)
        below = context.below("self_attn.")
        self.attention = SelfAttention(spec, backend, rope=rope, window=window, context=below)
        self.mlp_norm = RmsNorm("post_attention_layernorm", spec.hidden_size, spec.rms_eps, context=context)
        self.mlp = GatedMlp(spec, context=context.below("mlp."))

    def forward(
        self,
        hidden: torch.Tensor,
        angles: Angles,
        layer_kv: torch.Tensor,
        metadata: Any,
        logits_indices: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Adds to ``hidden`` in place. In the last layer only the rows ``logits_indices`` go on, as a copy."""
        attended = self.attention.attend(self.attention_norm(hidden), angles, layer_kv, metadata)
        if logits_indices is not None:
            attended, hidden = attended[logits_indices], hidden[logits_indices]
        hidden = self.attention.out(attended, hidden)
        return self.mlp(self.mlp_norm(hidden), hidden)  # type: ignore[no-any-return]

    def weights(self) -> DecoderLayerWeights:
        attention, mlp = self.attention, self.mlp
        return DecoderLayerWeights(
            attention_norm=self.attention_norm.weight,
            mlp_norm=self.mlp_norm.weight,
            qkv=attention.qkv,
            out=attention.out,
            gate_up=mlp.gate_up,
            down=mlp.down,
            q_norm=None if attention.q_norm is None else attention.q_norm.weight,
            k_norm=None if attention.k_norm is None else attention.k_norm.weight,
            rope=attention.rope,
            window=attention.window,
        )

    def targets(self) -> Iterator[tuple[str, Target]]:
        for part in (self.attention_norm, self.attention, self.mlp_norm, self.mlp):
            yield from part.targets()


class Decoder(nn.Module):
    """One rank's part of a decoder. See ``interface.DecoderModel``."""

    def __init__(
        self, spec: TextSpec, backend: AttentionBackend[Any], rotary: Rotary, *, context: LayerContext
    ) -> None:
        super().__init__()
        context = context.below("text.")
        self.embedding = VocabParallelEmbedding("embed_tokens", spec.vocab_size, spec.hidden_size, context=context)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, backend, rope=rope, window=layer.window, context=context.below(f"layers.{index}."))
            for index, (layer, rope) in enumerate(zip(spec.layers, rotary.ropes, strict=True))
        )
        self.norm = RmsNorm("norm", spec.hidden_size, spec.rms_eps, context=context)
        self.head = self.embedding
        if not spec.tie_embeddings:
            self.head = VocabParallelEmbedding("lm_head", spec.vocab_size, spec.hidden_size, context=context)
        self._spec, self._tp, self._backend, self._rotary = spec, context.tp, backend, rotary

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.embedding.embed(token_ids)

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        logits_indices: torch.Tensor,
    ) -> torch.Tensor:
        """The last layer computes K and V for all rows, and the rest for the rows whose logits are needed."""
        angles = self._rotary.angles(positions)
        *others, (last, last_kv) = zip(self.layers, kv_cache, strict=True)
        for layer, layer_kv in others:
            hidden = layer(hidden, angles, layer_kv, metadata)
        return last(hidden, angles, last_kv, metadata, logits_indices)  # type: ignore[no-any-return]

    def normalized(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden)  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        return self.head.logits(self.normalized(hidden))

    def decoder_weights(self) -> DecoderWeights:
        spec, tp = self._spec, self._tp
        return DecoderWeights(
            layers=[layer.weights() for layer in self.layers if isinstance(layer, DecoderLayer)],
            hidden_size=spec.hidden_size,
            intermediate_size=tp.share(spec.intermediate_size),
            heads=AttentionSpec.of(spec, tp),
            eps=spec.rms_eps,
            activation=spec.activation,
            tp_size=tp.size,
            rotary=self._rotary,
            attention=self._backend,
        )

    def targets(self) -> dict[str, Target | None]:
        found: dict[str, Target | None] = {"text.lm_head.weight": None}
        found.update(self.embedding.targets())
        if self.head is not self.embedding:
            found.update(self.head.targets())
        for layer in self.layers:
            assert isinstance(layer, DecoderLayer)
            found.update(layer.targets())
        found.update(self.norm.targets())
        return found
