"""Gemma 3 with pictures: its text model behind SigLIP."""

from __future__ import annotations

from mmserve.checkpoint.vision.gemma3 import Gemma3Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.gemma3 import Gemma3Tower


def tower(spec: Gemma3Vision, text_hidden_size: int, context: LayerContext) -> Gemma3Tower:
    return Gemma3Tower(spec, text_hidden_size, context=context)


FAMILY = Family(text.decoder, tower)
