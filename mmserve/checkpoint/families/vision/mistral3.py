"""Mistral-Small-3.1 and 3.2, Devstral, Magistral (2025): Pixtral's tower with a patch merger before a Mistral."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.multimodal import MultimodalJson
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.pixtral import PixtralJson
from mmserve.runtime.errors import StartupError


class VisionJson(PixtralJson, kw_only=True):
    patch_size: int | list[int] = 14


class Mistral3Json(MultimodalJson, kw_only=True):
    default_text: ClassVar[str] = "mistral"
    default_token_id: ClassVar[int] = 10
    default_token: ClassVar[str] = "[IMG]"

    vision_config: VisionJson = msgspec.field(default_factory=VisionJson)
    projector_hidden_act: str = "gelu"
    vision_feature_layer: int | list[int] = -1
    multimodal_projector_bias: bool = False
    spatial_merge_size: int = 2


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, Mistral3Json)
    text = config.text()
    if config.vision_feature_layer != -1:
        raise StartupError("only vision_feature_layer -1 is supported for Mistral-Small-3")
    vision = config.vision_config.spec(
        merge_size=config.spatial_merge_size,
        projector_norm_eps=text.rms_norm_eps,
        projector_activation=config.projector_hidden_act,
        projector_bias=config.multimodal_projector_bias,
    )
    return config.model_spec(directory, "mistral3", text, vision)
