"""InternVL3 and 3.5 in the format of transformers: a Qwen2, Qwen3 or Llama behind InternViT."""

from __future__ import annotations

from mmserve.checkpoint.vision.internvit import InternVit
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.internvit import InternVitTower


def tower(spec: InternVit, text_hidden_size: int, context: LayerContext) -> InternVitTower:
    return InternVitTower(spec, text_hidden_size, context=context)


FAMILY = Family(text.decoder, tower)
