"""The decoder of Llama (Touvron et al. 2023) and its many relatives, with what they add as options of ``TextSpec``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from mmserve.checkpoint.spec import LayerSpec, TextSpec
from mmserve.model_backend.attention.interface import AttentionBackend, AttentionSpec, RopeRows
from mmserve.model_backend.layers.attention import SelfAttention
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.embedding import VocabParallelEmbedding
from mmserve.model_backend.layers.mlp import GatedMlp
from mmserve.model_backend.layers.moe import MoeMlp
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.residual import Residual
from mmserve.model_backend.layers.rotary import Angles, Rotary
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.models.interface import DecoderLayerWeights, DecoderWeights, DeepStackRows


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream, perhaps through another norm."""

    def __init__(
        self,
        spec: TextSpec,
        backend: AttentionBackend[Any],
        *,
        layer: LayerSpec,
        rope: RopeRows | None,
        context: LayerContext,
    ) -> None:
        super().__init__()
        norm = partial(_norm, spec=spec, context=context)
        self.attention_norm = norm("input_layernorm")
        below = context.below("self_attn.")
        self.attention = SelfAttention(spec, backend, layer=layer, rope=rope, context=below)
        self.after_attention_norm = norm("post_attention_layernorm") if spec.sandwich_norms else None
        self.mlp_norm = norm("pre_feedforward_layernorm" if spec.sandwich_norms else "post_attention_layernorm")
        self.mlp = _mlp(spec, layer, context.below("mlp."))
        self.after_mlp_norm = norm("post_feedforward_layernorm") if spec.sandwich_norms else None

    def forward(
        self,
        stream: Residual,
        angles: Angles,
        layer_kv: torch.Tensor,
        metadata: Any,
        logits_indices: torch.Tensor | None = None,
    ) -> None:
        """In the last layer only the rows ``logits_indices`` go on."""
        qkv = stream.product(self.attention_norm, self.attention.qkv)
        some = logits_indices is not None
        values, multiply = self.attention.attend(qkv, angles, layer_kv, metadata, complete=some)
        if logits_indices is not None:
            values = values[logits_indices]
            stream.keep(logits_indices)
        stream.add_product(self.attention.out, values, after=self.after_attention_norm, multiply=multiply)
        self.mlp.add_to(stream, self.mlp_norm, self.after_mlp_norm)

    def weights(self) -> DecoderLayerWeights | None:
        """None for a layer with experts."""
        attention, mlp = self.attention, self.mlp
        if not isinstance(mlp, GatedMlp):
            return None
        return DecoderLayerWeights(
            attention_norm=self.attention_norm.weight,
            mlp_norm=self.mlp_norm.weight,
            qkv=attention.qkv,
            out=attention.out,
            gate_up=mlp.gate_up,
            down=mlp.down,
            q_norm=None if attention.q_norm is None else attention.q_norm.weight,
            k_norm=None if attention.k_norm is None else attention.k_norm.weight,
            after_attention_norm=None if self.after_attention_norm is None else self.after_attention_norm.weight,
            after_mlp_norm=None if self.after_mlp_norm is None else self.after_mlp_norm.weight,
            rope=attention.rope,
            mask=attention.mask,
        )

    def targets(self) -> Iterator[tuple[str, Target]]:
        parts = (self.attention_norm, self.attention, self.after_attention_norm)
        for part in (*parts, self.mlp_norm, self.mlp, self.after_mlp_norm):
            yield from () if part is None else part.targets()


def _mlp(spec: TextSpec, layer: LayerSpec, context: LayerContext) -> GatedMlp | MoeMlp:
    if not layer.experts:
        return GatedMlp(spec, context=context)
    assert spec.moe is not None, "experts of unknown size"
    return MoeMlp(spec, spec.moe, context=context)


def _norm(name: str, spec: TextSpec, context: LayerContext) -> RmsNorm:
    """Of hidden states."""
    return RmsNorm(name, spec.hidden_size, spec.rms_eps, offset=spec.norm_offset, context=context)


class Decoder(nn.Module):
    """One rank's part of a decoder. See ``interface.DecoderModel``."""

    def __init__(
        self, spec: TextSpec, backend: AttentionBackend[Any], rotary: Rotary, *, context: LayerContext
    ) -> None:
        super().__init__()
        context = context.below("text.")
        self.embedding = VocabParallelEmbedding("embed_tokens", spec.vocab_size, spec.hidden_size, context=context)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, backend, layer=layer, rope=rope, context=context.below(f"layers.{index}."))
            for index, (layer, rope) in enumerate(zip(spec.layers, rotary.ropes, strict=True))
        )
        self.norm = _norm("norm", spec, context)
        self.head = self.embedding
        if not spec.tie_embeddings:
            self.head = VocabParallelEmbedding("lm_head", spec.vocab_size, spec.hidden_size, context=context)
        self._spec, self._tp, self._backend, self._rotary = spec, context.tp, backend, rotary

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        rows, scale = self.embedding.embed(token_ids), self._spec.embedding_scale
        return rows if scale is None else rows.mul_(torch.tensor(scale, dtype=rows.dtype))

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: Any,
        logits_indices: torch.Tensor | None,
        deepstack: DeepStackRows | None = None,
    ) -> torch.Tensor:
        """The last layer computes K and V for all rows, and the rest for the rows whose logits are needed."""
        angles = self._rotary.angles(positions)
        stream = Residual(hidden)
        *others, (last, last_kv) = zip(self.layers, kv_cache, strict=True)
        for index, (layer, layer_kv) in enumerate(others):
            layer(stream, angles, layer_kv, metadata)
            if deepstack is not None and index < len(deepstack.values):
                stream.settled().index_add_(0, deepstack.rows, deepstack.values[index])
        last(stream, angles, last_kv, metadata, logits_indices)
        return stream.settled()

    def normalized(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden)  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        return self.head.logits(self.normalized(hidden))

    @property
    def is_capturable(self) -> bool:
        return all(mlp.is_capturable for mlp in self.modules() if isinstance(mlp, MoeMlp))

    def decoder_weights(self) -> DecoderWeights | None:
        spec, tp = self._spec, self._tp
        found = (layer.weights() for layer in self.layers if isinstance(layer, DecoderLayer))
        layers = [layer for layer in found if layer is not None]
        if len(layers) < len(self.layers):
            return None
        return DecoderWeights(
            layers=layers,
            hidden_size=spec.hidden_size,
            intermediate_size=tp.share(spec.intermediate_size),
            heads=AttentionSpec.of(spec, tp),
            eps=spec.rms_eps,
            activation=spec.activation,
            tp_size=tp.size,
            rotary=self._rotary,
            attention=self._backend,
            norm=self.norm.weight,
            head=self.head,
            embedding=self.embedding,
            embedding_scale=spec.embedding_scale,
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
