"""Hugging Face's config.json as typed structs. ``load`` turns them into a ModelSpec.

Defaults for missing keys are those of LlamaConfig, MistralConfig, CLIPVisionConfig and LlavaConfig in transformers 5.
"""

from __future__ import annotations

import msgspec

TokenIds = int | list[int] | None


class RopeJson(msgspec.Struct, kw_only=True):
    """``rope_parameters`` (transformers 5) or ``rope_scaling`` (earlier versions, sometimes with ``type``)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0


class LlamaJson(msgspec.Struct, kw_only=True):
    model_type: str = "llama"
    vocab_size: int = 32000
    hidden_size: int = 4096
    intermediate_size: int = 11008
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    rope_theta: float | None = None
    rope_scaling: RopeJson | None = None
    rope_parameters: RopeJson | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    sliding_window: int | None = None
    bos_token_id: int | None = 1
    eos_token_id: TokenIds = 2
    dtype: str | None = None
    torch_dtype: str | None = None


class MistralJson(LlamaJson, kw_only=True):
    model_type: str = "mistral"
    intermediate_size: int = 14336
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 4096 * 32
    sliding_window: int | None = 4096


class ClipVisionJson(msgspec.Struct, kw_only=True):
    model_type: str = "clip_vision_model"
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 32
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5


LLAVA_VISION = ClipVisionJson(
    hidden_size=1024,
    intermediate_size=4096,
    num_hidden_layers=24,
    num_attention_heads=16,
    image_size=336,
    patch_size=14,
)
"""LlavaConfig's default for a missing ``vision_config``."""


class LlavaJson(msgspec.Struct, kw_only=True):
    """``text_config`` stays raw, because its ``model_type`` decides its struct."""

    text_config: dict[str, object] | None = None
    vision_config: ClipVisionJson | None = None
    image_token_index: int | None = None
    image_token_id: int | None = None
    projector_hidden_act: str = "gelu"
    vision_feature_select_strategy: str = "default"
    vision_feature_layer: int | list[int] = -2
    multimodal_projector_bias: bool = True
    tie_word_embeddings: bool = False
    dtype: str | None = None
    torch_dtype: str | None = None


class GenerationJson(msgspec.Struct, kw_only=True):
    bos_token_id: int | None = None
    eos_token_id: TokenIds = None
