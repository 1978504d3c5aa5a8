"""Family name (``ModelSpec.family``) -> family. A family's module is imported on first use."""

from __future__ import annotations

from importlib import import_module

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.positions import PositionFunction, grid_positions, sequential_positions

_PACKAGE = "mmserve.model_backend.loader.families"
_TEXT = "text"
_OWN_MODULES = {
    "idefics3": "idefics3",
    "llava": "llava",
    "llava_next": "llava_next",
    "llava_onevision": "llava_onevision",
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "internvl": "internvl",
    "internvl_chat": "internvl",
    "mistral3": "mistral3",
    "pixtral": "mistral3",
    "gemma3": "gemma3",
    "paddleocr_vl": "paddleocr_vl",
}
"""Of families that are not text alone."""


def positions_of(model: ModelSpec) -> PositionFunction:
    """How the model's images change the positions of tokens."""
    if isinstance(model.vision, GenericVision):
        return grid_positions if model.vision.axes > 1 else sequential_positions
    return family_of(model.family).positions


def family_of(name: str) -> Family:
    family = import_module(f"{_PACKAGE}.{_OWN_MODULES.get(name, _TEXT)}").FAMILY
    assert isinstance(family, Family)
    return family
