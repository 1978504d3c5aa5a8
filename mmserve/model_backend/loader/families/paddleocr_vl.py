"""PaddleOCR-VL: an ERNIE 4.5 behind SigLIP."""

from __future__ import annotations

from mmserve.checkpoint.vision.paddleocr_vl import PaddleOcrVision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.models.positions import grid_positions
from mmserve.model_backend.vision.paddleocr_vl import PaddleOcrTower

_NAME_PREFIXES = (
    # As transformers 5 has it in memory.
    ("model.language_model.", "text."),
    ("model.visual.vision_model.", "vision."),
    ("model.projector.", "projector."),
    # As it was published.
    ("visual.vision_model.", "vision."),
    ("mlp_AR.", "projector."),
    *text.NAME_PREFIXES,
)


def tower(spec: PaddleOcrVision, text_hidden_size: int, context: LayerContext) -> PaddleOcrTower:
    return PaddleOcrTower(spec, text_hidden_size, context=context)


FAMILY = Family(_NAME_PREFIXES, text.decoder, tower, grid_positions)
