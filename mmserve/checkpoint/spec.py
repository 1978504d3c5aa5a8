"""Description of a model, as plain data read from its checkpoint directory."""

from __future__ import annotations

from typing import Literal

import msgspec

Family = Literal["llama", "llava"]


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Scaling of rotary positions (Hugging Face's ``rope_scaling`` or ``rope_parameters``)."""

    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192


class TextSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder of the Llama family."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_eps: float
    rope_theta: float
    rope_scaling: RopeScaling = RopeScaling()
    tie_embeddings: bool = False
    qkv_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"


class VisionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A CLIP vision tower with LLaVA's projector."""

    image_size: int
    patch_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    layer_norm_eps: float
    activation: str
    feature_layer: int
    select_strategy: Literal["default", "full"]
    projector_activation: str
    projector_bias: bool
    num_image_tokens: int


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model as processes know it before weights are loaded."""

    family: Family
    path: str
    """Checkpoint directory, resolved."""
    text: TextSpec
    vision: VisionSpec | None = None
    image_token_id: int | None = None
    """Placeholder token that the chat template writes once per image."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    checkpoint_dtype: str = "float32"
