"""Qwen3 with experts in place of the MLP, in all layers or in some; a window is in all layers or in none."""

from __future__ import annotations

from msgspec.structs import replace

from mmserve.checkpoint.families.text import qwen3
from mmserve.checkpoint.spec import LayerSpec, MoeSpec, TextSpec
from mmserve.runtime.errors import StartupError


class Config(qwen3.Config, kw_only=True):
    hidden_size: int = 2048
    intermediate_size: int = 6144
    num_hidden_layers: int = 24
    num_key_value_heads: int | None = 4
    head_dim: int | None = None
    decoder_sparse_step: int = 1
    mlp_only_layers: list[int] | None = None
    moe_intermediate_size: int = 768
    num_experts: int | None = None
    num_local_experts: int | None = None
    num_experts_per_tok: int = 8
    norm_topk_prob: bool = False

    def layers(self) -> list[LayerSpec]:
        dense, step = set(self.mlp_only_layers or ()), self.decoder_sparse_step
        has_experts = [index not in dense and (index + 1) % step == 0 for index in range(self.num_hidden_layers)]
        window = self.sliding_window if self.use_sliding_window else None
        pairs = zip(self.windowed(window, [True] * self.num_hidden_layers), has_experts, strict=True)
        return [replace(layer, experts=experts) for layer, experts in pairs]

    def text_spec(self) -> TextSpec:
        num_experts = self.num_experts or self.num_local_experts or 128
        if not 1 <= self.num_experts_per_tok <= num_experts:
            raise StartupError(f"num_experts_per_tok {self.num_experts_per_tok} of {num_experts} experts")
        moe = MoeSpec(
            num_experts=num_experts,
            top_k=self.num_experts_per_tok,
            intermediate_size=self.moe_intermediate_size,
            renormalize=self.norm_topk_prob,
        )
        return replace(super().text_spec(), moe=moe)
