"""LLaVA-NeXT, also known as LLaVA-1.6 (Liu et al. 2024): LLaVA with several tiles of each picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmserve.checkpoint.config.json_config import convert
from mmserve.checkpoint.families.vision.llava import LlavaJson
from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.anyres import LlavaNextVision
from mmserve.runtime.errors import StartupError


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    config = convert(raw, LlavaJson)
    vision = config.vision_spec(LlavaNextVision)
    if vision.select_strategy != "default":
        raise StartupError("only vision_feature_select_strategy 'default' is supported for LLaVA-NeXT")
    return config.model_spec(directory, "llava_next", config.text(), vision)
