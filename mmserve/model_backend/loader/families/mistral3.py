"""Mistral-Small-3 and its relatives: a Mistral behind Pixtral's tower."""

from __future__ import annotations

from mmserve.checkpoint.vision.pixtral import Pixtral
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.pixtral import PixtralTower


def tower(spec: Pixtral, text_hidden_size: int, context: LayerContext) -> PixtralTower:
    return PixtralTower(spec, text_hidden_size, context=context)


FAMILY = Family(text.decoder, tower)
