"""Llama 1 to 3, and the many fine-tunes and models that share its architecture."""

from __future__ import annotations

from msgspec.structs import replace

from mmserve.checkpoint.config.text_config import TextJson, TokenIds
from mmserve.checkpoint.spec import TextSpec


class Config(TextJson, kw_only=True):
    bos_token_id: int | None = 1
    eos_token_id: TokenIds = 2
    attention_bias: bool = False
    mlp_bias: bool = False

    def text_spec(self) -> TextSpec:
        biases = {"qkv_bias": self.attention_bias, "attention_out_bias": self.attention_bias, "mlp_bias": self.mlp_bias}
        return replace(super().text_spec(), **biases)
