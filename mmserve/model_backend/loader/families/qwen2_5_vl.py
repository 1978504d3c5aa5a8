"""Qwen2.5-VL: Qwen2-VL with a tower of its own."""

from __future__ import annotations

from mmserve.checkpoint.vision.qwen_vl import Qwen25Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.positions import grid_positions
from mmserve.model_backend.vision.qwen2_5_vl import Qwen25VisionTower


def tower(spec: Qwen25Vision, text_hidden_size: int, context: LayerContext) -> Qwen25VisionTower:
    return Qwen25VisionTower(spec, text_hidden_size, context=context)


FAMILY = Family(text.decoder, tower, grid_positions)
