"""Description of a model, as plain data read from its checkpoint directory."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.checkpoint.vision.qwen_vl import Qwen2Vision, Qwen3Vision, Qwen25Vision

VisionSpec = ClipVision | Qwen2Vision | Qwen25Vision | Qwen3Vision
"""Of any vision tower."""


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary positions (Hugging Face's ``rope_parameters``, or ``rope_theta`` and ``rope_scaling``)."""

    theta: float = 10_000.0
    kind: Literal["default", "linear", "llama3", "yarn"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Of yarn, as are the two before."""
    amplitude: float = 1.0
    """Of cosines and sines."""
    fraction: float = 1.0
    """Part of each head that turns: its first numbers. The same in all layers of a model."""
    sections: tuple[int, ...] = ()
    """How many pairs of a head turn with the time, the row and the column of an image's token. Empty: tokens have one
    position."""
    interleaved: bool = False
    """The pairs of the sections alternate, instead of following each other."""


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What may differ between the layers of one decoder."""

    rope: Rope | None = Rope()
    """None: attention knows no positions in this layer."""
    window: int | None = None
    """A token attends to itself and the ``window - 1`` tokens before it; None: to all tokens before it."""


class TextSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A pre-norm decoder with RMSNorm, grouped-query attention and a gated MLP."""

    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerSpec, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_position: int
    rms_eps: float
    tie_embeddings: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    """RMSNorm of each query and key head, before the rotation."""
    attention_out_bias: bool = False
    mlp_bias: bool = False
    activation: str = "silu"

    @property
    def num_layers(self) -> int:
        return len(self.layers)


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A model as processes know it before weights are loaded."""

    family: str
    """A family of ``checkpoint.registry``."""
    path: str
    """Checkpoint directory, resolved."""
    text: TextSpec
    vision: VisionSpec | None = None
    image_token_id: int | None = None
    """The token that stands for rows of a picture in a tokenized prompt."""
    image_token: str = "<image>"
    """Its text."""
    processor_options: dict[str, Any] = {}
    """Settings of the image processor that the user has changed (--mm-processor-kwargs)."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    checkpoint_dtype: str = "float32"
