"""LLaVA-OneVision: a Qwen2 behind a SigLIP tower of tiles."""

from __future__ import annotations

from mmserve.model_backend.loader.families import text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.anyres import onevision_tower

FAMILY = Family(text.decoder, onevision_tower)
