"""Qwen2 and Qwen2.5: Llama's layers with a bias on Q, K and V; optionally a window in the last layers."""

from __future__ import annotations

from msgspec.structs import replace

from mmserve.checkpoint.config.text_config import TextJson, sliding_types
from mmserve.checkpoint.spec import LayerSpec, TextSpec


class Config(TextJson, kw_only=True):
    vocab_size: int = 151936
    intermediate_size: int = 22016
    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    use_sliding_window: bool = False
    sliding_window: int | None = 4096
    max_window_layers: int = 28
    layer_types: list[str] | None = None

    def layers(self) -> list[LayerSpec]:
        if self.layer_types is None:
            sliding = [index >= self.max_window_layers for index in range(self.num_hidden_layers)]
        else:
            sliding = sliding_types(self.layer_types)
        return self.windowed(self.sliding_window if self.use_sliding_window else None, sliding)

    def text_spec(self) -> TextSpec:
        return replace(super().text_spec(), qkv_bias=True)
