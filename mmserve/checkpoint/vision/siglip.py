"""SigLIP's vision transformer (Zhai et al. 2023), which several families put before projectors of their own."""

from __future__ import annotations

from typing import Any

import msgspec

from mmserve.checkpoint.config.json_config import check_activation
from mmserve.checkpoint.vision.tower import TowerSpec
from mmserve.runtime.errors import StartupError


class SiglipSpec(TowerSpec, frozen=True, kw_only=True):
    """Square tiles in square patches, without a class token. A family's spec refines it."""

    image_size: int
    """Pixels of a tile's side."""

    @property
    def patches_per_side(self) -> int:
        return self.image_size // self.patch_size


class SiglipJson(msgspec.Struct, kw_only=True):
    """``vision_config`` of a family. Defaults are those of SiglipVisionConfig."""

    model_type: str = "siglip_vision_model"
    hidden_size: int = 768
    intermediate_size: int = 3072
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_channels: int = 3
    image_size: int = 224
    patch_size: int = 16
    hidden_act: str = "gelu_pytorch_tanh"
    layer_norm_eps: float = 1e-6

    def fields(self) -> dict[str, Any]:
        """Those of a ``SiglipSpec``. Raises StartupError for what is not supported."""
        check_activation(self.hidden_act)
        if self.num_channels != 3 or self.hidden_size % self.num_attention_heads:
            raise StartupError("vision_config: supported are 3 channels, and heads that divide the hidden size")
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
