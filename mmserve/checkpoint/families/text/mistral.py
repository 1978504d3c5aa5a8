"""Mistral (Jiang et al. 2023): Llama's layers; version 0.1 has a sliding window in all of them."""

from __future__ import annotations

from mmserve.checkpoint.config.text_config import TextJson, TokenIds
from mmserve.checkpoint.spec import LayerSpec


class Config(TextJson, kw_only=True):
    intermediate_size: int = 14336
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 4096 * 32
    sliding_window: int | None = 4096
    bos_token_id: int | None = 1
    eos_token_id: TokenIds = 2

    def layers(self) -> list[LayerSpec]:
        return self.windowed(self.sliding_window, [True] * self.num_hidden_layers)
