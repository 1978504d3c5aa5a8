"""Qwen3, dense: Qwen2 with norms of query and key heads in place of the bias."""

from __future__ import annotations

from msgspec.structs import replace

from mmserve.checkpoint.families.text import qwen2
from mmserve.checkpoint.spec import TextSpec


class Config(qwen2.Config, kw_only=True):
    head_dim: int | None = 128
    attention_bias: bool = False

    def text_spec(self) -> TextSpec:
        bias = self.attention_bias
        return replace(super().text_spec(), qkv_bias=bias, attention_out_bias=bias, qk_norm=True)
