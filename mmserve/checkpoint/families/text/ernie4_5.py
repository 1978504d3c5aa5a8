"""ERNIE 4.5, dense: Llama's layers, in which adjacent numbers of a head turn together."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from mmserve.checkpoint.config.text_config import TextJson, TokenIds
from mmserve.checkpoint.spec import Rope, TextSpec


class Config(TextJson, kw_only=True):
    default_theta: ClassVar[float] = 500_000.0

    vocab_size: int = 103_424
    hidden_size: int = 1024
    intermediate_size: int = 3072
    num_hidden_layers: int = 18
    num_attention_heads: int = 16
    num_key_value_heads: int | None = 2
    head_dim: int | None = 128
    max_position_embeddings: int = 131_072
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    bos_token_id: int | None = 1
    eos_token_id: TokenIds = 2
    use_bias: bool | None = False

    def rope(self) -> Rope:
        return replace(super().rope(), adjacent=True)

    def text_spec(self) -> TextSpec:
        bias = bool(self.use_bias)
        return replace(super().text_spec(), qkv_bias=bias, attention_out_bias=bias, mlp_bias=bias)
