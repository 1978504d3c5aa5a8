"""Ministral 3 and the text of later Mistral 3 models (2025): yarn, and queries that grow with their position."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from mmserve.checkpoint.config.rope_config import RopeJson
from mmserve.checkpoint.config.text_config import TokenIds
from mmserve.checkpoint.families.text import mistral


def _default_rope() -> RopeJson:
    """Of a config.json without one."""
    return RopeJson(
        rope_type="yarn",
        factor=16.0,
        original_max_position_embeddings=16384,
        mscale=1.0,
        mscale_all_dim=1.0,
        llama_4_scaling_beta=0.1,
    )


class Config(mistral.Config, kw_only=True):
    default_theta: ClassVar[float] = 1_000_000.0

    vocab_size: int = 131_072
    num_hidden_layers: int = 34
    head_dim: int | None = 128
    max_position_embeddings: int = 262_144
    rms_norm_eps: float = 1e-5
    rope_parameters: RopeJson | None = msgspec.field(default_factory=_default_rope)
    sliding_window: int | None = None
    eos_token_id: TokenIds = 2
