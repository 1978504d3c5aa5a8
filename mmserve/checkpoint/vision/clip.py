"""CLIP's vision transformer (Radford et al. 2021) with LLaVA's projector."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from mmserve.checkpoint.config.json_config import check_activation
from mmserve.checkpoint.vision.tower import TowerSpec
from mmserve.runtime.errors import StartupError


class ClipVision(TowerSpec, frozen=True, kw_only=True, tag="clip"):
    image_size: int
    feature_layer: int
    """The layer whose output is used; 0: the embeddings, -1: the last layer."""
    select_strategy: Literal["default", "full"]
    projector_activation: str
    projector_bias: bool

    @property
    def num_rows(self) -> int:
        """Of one picture. "default" drops the class token; "full" keeps it."""
        return (self.image_size // self.patch_size) ** 2 + (self.select_strategy == "full")

    @property
    def num_layers_needed(self) -> int:
        """Layers up to the feature layer."""
        return self.feature_layer if self.feature_layer >= 0 else self.num_layers + 1 + self.feature_layer


class ClipJson(msgspec.Struct, kw_only=True):
    """``vision_config`` of a family. Defaults are those of CLIPVisionConfig."""

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

    def fields(self) -> dict[str, Any]:
        """Those of a ``ClipVision`` before its projector. Raises StartupError for what is not supported."""
        if self.model_type not in ("clip_vision_model", "clip") or self.num_channels != 3:
            raise StartupError(
                f"vision tower {self.model_type!r} is not supported; supported is CLIP's with 3 channels"
            )
        check_activation(self.hidden_act)
        return {
            "image_size": self.image_size,
            "patch_size": self.patch_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_layers": self.num_hidden_layers,
            "num_heads": self.num_attention_heads,
            "layer_norm_eps": self.layer_norm_eps,
            "activation": self.hidden_act,
        }
