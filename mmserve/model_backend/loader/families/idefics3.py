"""Idefics3 and SmolVLM: a Llama decoder behind SigLIP and a linear connector."""

from __future__ import annotations

from mmserve.checkpoint.vision.idefics3 import Idefics3Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.idefics3 import Idefics3Tower


def tower(spec: Idefics3Vision, text_hidden_size: int, context: LayerContext) -> Idefics3Tower:
    return Idefics3Tower(spec, text_hidden_size, context=context)


FAMILY = Family(text.decoder, tower)
