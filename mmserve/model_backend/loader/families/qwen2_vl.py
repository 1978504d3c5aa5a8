"""Qwen2-VL and, by the same names, its successors."""

from __future__ import annotations

from mmserve.checkpoint.vision.qwen_vl import Qwen2Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.positions import grid_positions
from mmserve.model_backend.vision.qwen2_vl import Qwen2VisionTower

NAME_PREFIXES = (
    # Of Qwen3-VL on the hub, and of all in transformers 5.
    ("model.visual.", "vision."),
    ("model.language_model.", "text."),
    # Of Qwen2-VL and Qwen2.5-VL on the hub.
    ("visual.", "vision."),
    *text.NAME_PREFIXES,
)


def tower(spec: Qwen2Vision, text_hidden_size: int, context: LayerContext) -> Qwen2VisionTower:
    return Qwen2VisionTower(spec, text_hidden_size, context=context)


FAMILY = Family(NAME_PREFIXES, text.decoder, tower, grid_positions)
