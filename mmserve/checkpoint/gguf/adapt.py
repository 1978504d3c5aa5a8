"""What differs between a model's numbers in GGUF and in Hugging Face's checkpoints."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from mmserve.checkpoint.spec import LayerSpec, TextSpec


def as_stored(text: TextSpec, about: dict[str, Any]) -> TextSpec:
    """``about``: ``gguf`` of config.json. The text model for weights as they are in the file."""
    layers = tuple(_adjacent(layer) for layer in text.layers) if about["adjacent_rope"] else text.layers
    return replace(text, layers=layers, norm_offset=0.0 if about["offset_norms"] else text.norm_offset)


def _adjacent(layer: LayerSpec) -> LayerSpec:
    return layer if layer.rope is None else replace(layer, rope=replace(layer.rope, adjacent=True))
