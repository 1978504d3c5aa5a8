"""Qwen2-VL and, by the same names, its successors."""

from __future__ import annotations

from mmserve.checkpoint.vision.qwen_vl import Qwen2Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.positions import grid_positions
from mmserve.model_backend.vision.qwen2_vl import Qwen2VisionTower


def tower(spec: Qwen2Vision, text_hidden_size: int, context: LayerContext) -> Qwen2VisionTower:
    return Qwen2VisionTower(spec, text_hidden_size, context=context)


FAMILY = Family(text.decoder, tower, grid_positions)
