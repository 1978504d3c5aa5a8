"""LLaVA-NeXT: a Llama, Mistral or Qwen2 behind a CLIP tower of tiles."""

from __future__ import annotations

from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.anyres import llava_next_tower

FAMILY = Family(text.decoder, llava_next_tower)
