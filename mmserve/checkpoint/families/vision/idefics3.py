"""Idefics3 (Laurençon et al. 2024), SmolVLM and SmolVLM2: Llama behind SigLIP, with a picture in tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.multimodal import MultimodalJson
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.idefics3 import Idefics3Vision
from mmserve.checkpoint.vision.siglip import SiglipJson
from mmserve.runtime.errors import StartupError


class VisionJson(SiglipJson, kw_only=True):
    """Defaults are those of Idefics3VisionConfig and SmolVLMVisionConfig."""

    hidden_size: int = 1152
    num_attention_heads: int = 16
    patch_size: int = 32


class Idefics3Json(MultimodalJson, kw_only=True):
    default_token_id: ClassVar[int] = 128257

    vision_config: VisionJson = msgspec.field(default_factory=VisionJson)
    scale_factor: int = 2
    tie_word_embeddings: bool = False


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, Idefics3Json)
    sizes, scale = config.vision_config, config.scale_factor
    side = sizes.image_size // sizes.patch_size
    if scale < 1 or side % scale:
        raise StartupError(f"scale_factor {scale} does not divide the {side} patches along the side of a tile")
    vision = Idefics3Vision(scale=scale, patches_per_row=scale**2, **sizes.fields())
    return config.model_spec(directory, "idefics3", config.text(), vision)
