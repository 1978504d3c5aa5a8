"""Gemma 3's text model: four norms a layer; five of six layers have a window and another rope than the rest."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.config.rope_config import RopeJson
from mmserve.checkpoint.config.text_config import TextJson, TokenIds, sliding_types
from mmserve.checkpoint.spec import LayerSpec, Rope, TextSpec
from mmserve.runtime.errors import StartupError


class RopesJson(RopeJson, kw_only=True):
    """``rope_parameters`` of transformers 5 holds one object for each type of layer."""

    full_attention: RopeJson | None = None
    sliding_attention: RopeJson | None = None


class Config(TextJson, kw_only=True):
    default_theta: ClassVar[float] = 1_000_000.0

    vocab_size: int = 262_208
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 26
    num_attention_heads: int = 8
    num_key_value_heads: int | None = 4
    head_dim: int | None = 256
    hidden_act: str = msgspec.field(name="hidden_activation", default="gelu_pytorch_tanh")
    max_position_embeddings: int = 131_072
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 2
    eos_token_id: TokenIds = 1
    rope_parameters: RopesJson | None = None
    rope_local_base_freq: float = 10_000.0
    attention_bias: bool = False
    query_pre_attn_scalar: float = 256
    sliding_window: int | None = 4096
    sliding_window_pattern: int = 6
    layer_types: list[str] | None = None
    final_logit_softcapping: float | None = None
    attn_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = False

    def rope(self) -> Rope:
        """Of the layers without a window."""
        ropes = self.rope_parameters
        if ropes is None or ropes.full_attention is None:
            return super().rope()
        return ropes.full_attention.rope(self.default_theta, self.max_position_embeddings)

    def layers(self) -> list[LayerSpec]:
        if self.layer_types is None:
            sliding = [(index + 1) % self.sliding_window_pattern != 0 for index in range(self.num_hidden_layers)]
        else:
            sliding = sliding_types(self.layer_types)
        layers, local = self.windowed(self.sliding_window, sliding), self._local_rope()
        pairs = zip(layers, sliding, strict=True)
        return [replace(layer, rope=local) if slides else layer for layer, slides in pairs]

    def _local_rope(self) -> Rope:
        """Of the layers with a window. ``rope_scaling`` of earlier files does not concern them."""
        ropes = self.rope_parameters
        found = RopeJson() if ropes is None or ropes.sliding_attention is None else ropes.sliding_attention
        return found.rope(self.rope_local_base_freq, self.max_position_embeddings)

    def text_spec(self) -> TextSpec:
        if self.final_logit_softcapping or self.attn_logit_softcapping:
            raise StartupError("a soft cap of logits or attention scores is not supported")
        if self.use_bidirectional_attention:
            raise StartupError("use_bidirectional_attention makes this an encoder; only decoders are supported")
        return replace(
            super().text_spec(),
            qkv_bias=self.attention_bias,
            attention_out_bias=self.attention_bias,
            qk_norm=True,
            norm_offset=1.0,
            sandwich_norms=True,
            embedding_scale=self.hidden_size**0.5,
            attention_scale=self.query_pre_attn_scalar**-0.5,
        )
