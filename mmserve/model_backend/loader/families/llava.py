"""LLaVA-1.5: a Llama or Mistral decoder behind a CLIP tower with a two-layer projector."""

from __future__ import annotations

from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.clip import VisionTower

NAME_PREFIXES = (
    # As transformers 5 saves it.
    ("model.language_model.", "text."),
    ("model.vision_tower.vision_model.", "vision."),
    ("model.vision_tower.", "vision."),
    ("model.multi_modal_projector.", "projector."),
    # As LLaVA-1.5 was published.
    ("language_model.model.", "text."),
    ("language_model.lm_head.", "text.lm_head."),
    ("vision_tower.vision_model.", "vision."),
    ("vision_tower.", "vision."),
    ("multi_modal_projector.", "projector."),
    # The row that ends a line of LLaVA-NeXT and LLaVA-OneVision.
    ("model.image_newline", "projector.image_newline"),
    ("image_newline", "projector.image_newline"),
    # Last, because its "model." is a prefix of names above.
    *text.NAME_PREFIXES,
)


def tower(spec: ClipVision, text_hidden_size: int, context: LayerContext) -> VisionTower:
    return VisionTower(spec, text_hidden_size, context=context)


FAMILY = Family(NAME_PREFIXES, text.decoder, tower)
