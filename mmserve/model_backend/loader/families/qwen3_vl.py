"""Qwen3-VL: the tower's further streams go to the first layers of the decoder."""

from __future__ import annotations

from mmserve.checkpoint.vision.qwen_vl import Qwen3Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.positions import grid_positions
from mmserve.model_backend.vision.qwen3_vl import Qwen3VisionTower


def tower(spec: Qwen3Vision, text_hidden_size: int, context: LayerContext) -> Qwen3VisionTower:
    return Qwen3VisionTower(spec, text_hidden_size, context=context)


FAMILY = Family(text.decoder, tower, grid_positions)
