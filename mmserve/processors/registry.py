"""The image processor of each model. A family's module is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.interface import ImageProcessor

_MODULES = {
    "gemma3": "gemma3",
    "idefics3": "idefics3",
    "internvl": "internvl",
    "internvl_chat": "internvl",
    "llava": "llava",
    "llava_next": "llava_next",
    "llava_onevision": "llava_onevision",
    "mistral3": "mistral3",
    "paddleocr_vl": "paddleocr_vl",
    "pixtral": "mistral3",
    "qwen2_5_vl": "qwen_vl",
    "qwen2_vl": "qwen_vl",
    "qwen3_vl": "qwen_vl",
    "qwen3_vl_moe": "qwen_vl",
    "transformers": "transformers",
}
"""Family (``ModelSpec.family``) -> its module in ``processors.families``."""


def processor_for(model: ModelSpec) -> ImageProcessor | None:
    """The image processor of a model; None for a text model. Raises StartupError."""
    if model.vision is None:
        return None
    module = import_module(f"mmserve.processors.families.{_MODULES[model.family]}")
    return cast(ImageProcessor, module.processor(model))
