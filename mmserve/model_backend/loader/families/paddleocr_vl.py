"""PaddleOCR-VL: an ERNIE 4.5 behind SigLIP."""

from __future__ import annotations

from mmserve.checkpoint.vision.paddleocr_vl import PaddleOcrVision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.positions import grid_positions
from mmserve.model_backend.vision.paddleocr_vl import PaddleOcrTower


def tower(spec: PaddleOcrVision, text_hidden_size: int, context: LayerContext) -> PaddleOcrTower:
    return PaddleOcrTower(spec, text_hidden_size, context=context)


FAMILY = Family(text.decoder, tower, grid_positions)
