"""The Llama architecture: what a decoder computes and where its tensors go. Knows no file, no plan, no sampling."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import Attention
from mmserve.model_backend.attention.paged_cpu import PagedCpuAttention
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.activation import SILU
from mmserve.model_backend.layers.attention import SelfAttention
from mmserve.model_backend.layers.embedding import VocabParallelTable
from mmserve.model_backend.layers.mlp import CPU_ROWS, GatedMlp
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.rotary import Rotary
from mmserve.model_backend.loader.weights import Target
from mmserve.model_backend.platforms.cpu.decoder import DecoderLayers, DecoderShape, LayerWeights, Weights


class DecoderLayer(nn.Module):
    """Attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, spec: TextSpec, attention: Attention, *, tp: TpGroup, like: torch.Tensor) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(spec.hidden_size, spec.rms_eps, like=like)
        self.attention = SelfAttention(spec, attention, tp=tp, like=like)
        self.mlp_norm = RmsNorm(spec.hidden_size, spec.rms_eps, like=like)
        self.mlp = GatedMlp(spec, tp=tp, like=like)

    def forward(
        self,
        hidden: torch.Tensor,
        angles: tuple[torch.Tensor, torch.Tensor],
        layer_kv: torch.Tensor,
        layout: Any,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Adds to ``hidden`` in place; to a copy of its ``wanted`` rows when only they go on."""
        mixed = self.attention.mix(self.attention_norm(hidden), angles, layer_kv, layout)
        if wanted is not None:
            mixed, hidden = mixed[wanted], hidden[wanted]
        hidden = self.attention.out(mixed, hidden)
        return self.mlp(self.mlp_norm(hidden), onto=hidden)  # type: ignore[no-any-return]

    def weights(self) -> LayerWeights:
        """As they are now."""
        attention, mlp = self.attention, self.mlp
        return LayerWeights(
            self.attention_norm.weight,
            self.mlp_norm.weight,
            *(Weights(part.weight, part.bias, part.in_size) for part in (attention.qkv, attention.out)),
            *(Weights(part.weight, part.bias, part.in_size) for part in (mlp.gate_up, mlp.down)),
        )

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        yield from self.attention_norm.targets(f"{prefix}input_layernorm")
        yield from self.attention.targets(f"{prefix}self_attn.")
        yield from self.mlp_norm.targets(f"{prefix}post_attention_layernorm")
        yield from self.mlp.targets(f"{prefix}mlp.")


class Llama(nn.Module):
    """One rank's part of a Llama decoder. ``like`` gives dtype and device of all parameters."""

    def __init__(self, spec: TextSpec, attention: Attention, *, tp: TpGroup, like: torch.Tensor) -> None:
        super().__init__()
        self.embedding = VocabParallelTable(spec.vocab_size, spec.hidden_size, tp=tp, like=like)
        self.layers = nn.ModuleList(DecoderLayer(spec, attention, tp=tp, like=like) for _ in range(spec.num_layers))
        self.norm = RmsNorm(spec.hidden_size, spec.rms_eps, like=like)
        self.head = self.embedding
        if not spec.tie_embeddings:
            self.head = VocabParallelTable(spec.vocab_size, spec.hidden_size, tp=tp, like=like)
        self._rotary = Rotary(spec, like.device)
        self._spec, self._tp, self._attention = spec, tp, attention
        self._whole: DecoderLayers | None = None

    def fuse(self) -> None:
        """Once the weights are packed: all layers as one call, where the C++ kernels can compute every part of them."""
        spec = self._spec
        weights = [layer.weights() for layer in self.layers if isinstance(layer, DecoderLayer)]
        products = [product.panels for layer in weights for product in layer[2:]]
        if (
            self._tp.size == 1
            and isinstance(self._attention, PagedCpuAttention)
            and spec.activation in SILU
            and spec.hidden_size % 8 == spec.intermediate_size % 8 == 0
            and all(panels.dim() == 3 for panels in products)
        ):
            self._whole = DecoderLayers(
                weights,
                DecoderShape(
                    spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim, CPU_ROWS, spec.rms_eps
                ),
            )

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> [T, hidden]."""
        return self.embedding.embed(token_ids)

    def forward(
        self, hidden: torch.Tensor, positions: torch.Tensor, kv: torch.Tensor, layout: Any, wanted: torch.Tensor
    ) -> torch.Tensor:
        """[T, hidden] at int64 positions [T] -> [S, hidden] for the ascending rows int64 [S], of which logits are
        wanted; kv: [layers, blocks, tokens, 2, kv_heads, dim]. Writes over ``hidden``. Of the other rows the last layer
        needs K and V alone."""
        angles = self._rotary.angles(positions, hidden.dtype)
        if self._whole is not None:
            return self._whole(hidden, angles, kv, layout, wanted)
        *others, last = zip(self.layers, kv, strict=True)
        for layer, layer_kv in others:
            hidden = layer(hidden, angles, layer_kv, layout)
        layer, layer_kv = last
        return layer(hidden, angles, layer_kv, layout, wanted)  # type: ignore[no-any-return]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """[S, hidden] -> [S, vocab] on rank 0, None on the others."""
        return self.head.logits(self.norm(hidden))

    def targets(self) -> dict[str, Target | None]:
        """Canonical tensor name -> the parameter's part."""
        found: dict[str, Target | None] = {"text.lm_head.weight": None}
        found.update(self.embedding.targets("text.embed_tokens.weight"))
        if self.head is not self.embedding:
            found.update(self.head.targets("text.lm_head.weight"))
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            found.update(layer.targets(f"text.layers.{index}."))
        found.update(self.norm.targets("text.norm"))
        return found
