"""Gemma 3 (2025) with pictures: 4B, 12B and 27B. SigLIP before a text model that sees each picture as a whole."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.config.multimodal import MultimodalJson
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.gemma3 import Gemma3Vision
from mmserve.checkpoint.vision.siglip import SiglipJson
from mmserve.runtime.errors import StartupError


class Gemma3Json(MultimodalJson, kw_only=True):
    default_text: ClassVar[str] = "gemma3_text"
    default_token_id: ClassVar[int] = 262144
    default_token: ClassVar[str] = "<image_soft_token>"

    vision_config: SiglipJson = msgspec.field(default_factory=SiglipJson)
    mm_tokens_per_image: int = 256


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, Gemma3Json)
    sizes = config.vision_config
    rows, patches = math.isqrt(config.mm_tokens_per_image), sizes.image_size // sizes.patch_size
    if rows**2 != config.mm_tokens_per_image or patches % rows:
        raise StartupError(
            f"mm_tokens_per_image {config.mm_tokens_per_image} does not fit {patches} x {patches} patches"
        )
    vision = Gemma3Vision(rows_per_side=rows, patches_per_row=(patches // rows) ** 2, **sizes.fields())
    spec = config.model_spec(directory, "gemma3", config.text(), vision)
    layers = tuple(replace(layer, whole_images=True) for layer in spec.text.layers)
    return replace(spec, text=replace(spec.text, layers=layers))
