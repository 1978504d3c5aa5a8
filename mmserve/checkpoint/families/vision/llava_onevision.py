"""LLaVA-OneVision (Li et al. 2024): SigLIP before a Qwen2, with several tiles of each picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec

from mmserve.checkpoint.config.json_config import check_activation, convert
from mmserve.checkpoint.config.multimodal import MultimodalJson
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.anyres import LlavaOnevisionVision
from mmserve.checkpoint.vision.siglip import SiglipJson
from mmserve.runtime.errors import StartupError


class VisionJson(SiglipJson, kw_only=True):
    """LlavaOnevisionConfig's defaults for a missing ``vision_config``; files that have one give all of these."""

    hidden_size: int = 1152
    intermediate_size: int = 4304
    num_hidden_layers: int = 26
    num_attention_heads: int = 16
    image_size: int = 384
    patch_size: int = 14


class OnevisionJson(MultimodalJson, kw_only=True):
    default_text: ClassVar[str] = "qwen2"
    default_token_id: ClassVar[int] = 151646

    vision_config: VisionJson = msgspec.field(default_factory=VisionJson)
    projector_hidden_act: str = "gelu"
    vision_feature_select_strategy: str = "full"
    vision_feature_layer: int | list[int] = -1
    multimodal_projector_bias: bool = True
    tie_word_embeddings: bool = False


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, OnevisionJson)
    if config.vision_feature_layer != -1 or config.vision_feature_select_strategy != "full":
        raise StartupError("only vision_feature_layer -1 with strategy 'full' is supported for LLaVA-OneVision")
    check_activation(config.projector_hidden_act)
    vision = LlavaOnevisionVision(
        projector_activation=config.projector_hidden_act,
        projector_bias=config.multimodal_projector_bias,
        **config.vision_config.fields(),
    )
    return config.model_spec(directory, "llava_onevision", config.text(), vision)
