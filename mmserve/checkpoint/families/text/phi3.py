"""Phi-3 to Phi-4-mini: Llama with projections stored fused. A part of each head may turn, and longrope is known."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mmserve.checkpoint.config.rope_config import RopeJson
from mmserve.checkpoint.config.text_config import TextJson, TokenIds
from mmserve.checkpoint.spec import LayerSpec

_EARLIER_NAMES = ("su", "yarn")
"""Of longrope, in the first files of Phi-3."""


class Config(TextJson, kw_only=True):
    partial_rotation: ClassVar[bool] = True

    vocab_size: int = 32064
    hidden_size: int = 3072
    intermediate_size: int = 8192
    max_position_embeddings: int = 4096
    original_max_position_embeddings: int | None = 4096
    rms_norm_eps: float = 1e-5
    bos_token_id: int | None = 1
    eos_token_id: TokenIds = 32000
    sliding_window: int | None = None

    def rope_json(self) -> RopeJson:
        found = super().rope_json()
        earlier = (found.rope_type or found.type) in _EARLIER_NAMES
        return replace(found, rope_type="longrope") if earlier else found

    def layers(self) -> list[LayerSpec]:
        return self.windowed(self.sliding_window, [True] * self.num_hidden_layers)
