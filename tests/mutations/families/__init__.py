"""Families and their mutations, by the names of ``checkpoint.registry``, and formats of quantized checkpoints."""

from __future__ import annotations

from tests.mutations.families import patches, quantized, qwen_vl, text, tiles
from tests.mutations.mutation import Family

FAMILIES: dict[str, Family] = text.FAMILIES | qwen_vl.FAMILIES | patches.FAMILIES | tiles.FAMILIES | quantized.FAMILIES
