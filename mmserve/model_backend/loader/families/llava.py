"""LLaVA-1.5: a Llama or Mistral decoder behind a CLIP tower with a two-layer projector."""

from __future__ import annotations

from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.clip import VisionTower


def tower(spec: ClipVision, text_hidden_size: int, context: LayerContext) -> VisionTower:
    return VisionTower(spec, text_hidden_size, context=context)


FAMILY = Family(text.decoder, tower)
