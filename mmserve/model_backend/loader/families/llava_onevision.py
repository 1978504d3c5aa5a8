"""LLaVA-OneVision: a Qwen2 behind a SigLIP tower of tiles."""

from __future__ import annotations

from mmserve.model_backend.loader.families import llava, text
from mmserve.model_backend.loader.family import Family
from mmserve.model_backend.vision.anyres import onevision_tower

FAMILY = Family(llava.NAME_PREFIXES, text.decoder, onevision_tower)
