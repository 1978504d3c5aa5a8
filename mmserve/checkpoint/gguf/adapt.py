"""What differs between a model's numbers in GGUF and in Hugging Face's checkpoints."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mmserve.checkpoint.spec import LayerSpec, ModelSpec, TextSpec, VisionSpec
from mmserve.checkpoint.vision.gemma3 import Gemma3Vision


def as_stored(model: ModelSpec, about: dict[str, Any]) -> ModelSpec:
    """``about``: ``gguf`` of config.json. The model for weights as they are in the files."""
    text, vision = model.text, model.vision
    if about["adjacent_rope"]:
        text = replace(text, layers=tuple(_adjacent(layer) for layer in text.layers))
    if about["offset_norms"]:
        text, vision = _whole_norms(text, vision)
    return replace(model, text=text, vision=vision)


def _adjacent(layer: LayerSpec) -> LayerSpec:
    return layer if layer.rope is None else replace(layer, rope=replace(layer.rope, adjacent=True))


def _whole_norms(text: TextSpec, vision: VisionSpec | None) -> tuple[TextSpec, VisionSpec | None]:
    if isinstance(vision, Gemma3Vision):
        vision = replace(vision, norm_offset=0.0)
    return replace(text, norm_offset=0.0), vision
