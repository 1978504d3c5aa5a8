"""Pixtral-12B (Agrawal et al. 2024) in the format of transformers: LLaVA's, with Pixtral's tower before a Mistral."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.multimodal import MultimodalJson
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.pixtral import PixtralJson
from mmserve.runtime.errors import StartupError


class PixtralModelJson(MultimodalJson, kw_only=True):
    default_text: ClassVar[str] = "mistral"
    default_token: ClassVar[str] = "[IMG]"

    vision_config: PixtralJson = msgspec.field(default_factory=PixtralJson)
    projector_hidden_act: str = "gelu"
    vision_feature_layer: int | list[int] = -2
    vision_feature_select_strategy: str = "default"
    multimodal_projector_bias: bool = True
    tie_word_embeddings: bool = False


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, PixtralModelJson)
    if config.vision_feature_layer != -1 or config.vision_feature_select_strategy != "full":
        raise StartupError("only vision_feature_layer -1 with strategy 'full' is supported for Pixtral's tower")
    vision = config.vision_config.spec(
        merge_size=None,
        projector_norm_eps=0.0,
        projector_activation=config.projector_hidden_act,
        projector_bias=config.multimodal_projector_bias,
    )
    return config.model_spec(directory, "pixtral", config.text(), vision)
