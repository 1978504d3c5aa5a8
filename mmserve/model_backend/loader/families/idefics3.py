"""Idefics3 and SmolVLM: a Llama decoder behind SigLIP and a linear connector."""

from __future__ import annotations

from mmserve.checkpoint.vision.idefics3 import Idefics3Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.idefics3 import Idefics3Tower

_NAME_PREFIXES = (
    ("model.text_model.", "text."),
    ("model.vision_model.", "vision."),
    ("model.connector.modality_projection.", "projector."),
    ("lm_head.", "text.lm_head."),
)


def tower(spec: Idefics3Vision, text_hidden_size: int, context: LayerContext) -> Idefics3Tower:
    return Idefics3Tower(spec, text_hidden_size, context=context)


FAMILY = Family(_NAME_PREFIXES, text.decoder, tower)
