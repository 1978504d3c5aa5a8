"""Qwen3-VL with experts: Qwen3-VL's tower and positions with the decoder of Qwen3-MoE."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from mmserve.checkpoint.families.text import qwen3_moe
from mmserve.checkpoint.families.vision import qwen3_vl
from mmserve.checkpoint.spec import ModelSpec, Rope, TextSpec


class Config(qwen3_moe.Config, kw_only=True):
    default_theta: ClassVar[float] = 500_000.0

    intermediate_size: int = 5632
    num_attention_heads: int = 16
    num_key_value_heads: int | None = 16
    max_position_embeddings: int = 128000
    moe_intermediate_size: int = 1408
    num_local_experts: int | None = 60
    num_experts_per_tok: int = 4

    def rope(self) -> Rope:
        return qwen3_vl.interleaved(super().rope())

    def text_spec(self) -> TextSpec:
        """All models of the family renormalize, whatever their config says."""
        spec = super().text_spec()
        assert spec.moe is not None
        return replace(spec, moe=replace(spec.moe, renormalize=True))


def model(directory: Path, raw: dict[str, Any]) -> ModelSpec:
    """Raises StartupError for what is not supported."""
    return qwen3_vl.read(directory, raw, "qwen3_vl_moe", Config)
