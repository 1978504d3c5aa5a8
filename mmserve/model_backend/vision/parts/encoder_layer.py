"""The transformer layer that CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023) share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import nn

from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection, RowParallelLinear
from mmserve.model_backend.layers.norm import LayerNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.parts.feed_forward import feed_forward
from mmserve.model_backend.vision.parts.patch_grids import Angles
from mmserve.model_backend.vision.parts.self_attention import self_attention


class EncoderSizes(Protocol):
    """The part of a tower's spec that a layer needs."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def intermediate_size(self) -> int: ...

    @property
    def num_heads(self) -> int: ...

    @property
    def layer_norm_eps(self) -> float: ...

    @property
    def activation(self) -> str: ...


class EncoderLayer(nn.Module):
    """Bidirectional attention and MLP, each behind a LayerNorm and added to the residual stream."""

    def __init__(self, spec: EncoderSizes, *, context: LayerContext) -> None:
        super().__init__()
        size, inner = spec.hidden_size, spec.intermediate_size
        self._num_heads, self._ops = spec.num_heads, context.ops
        attention, mlp = context.below("self_attn."), context.below("mlp.")
        self.attention_norm = LayerNorm("layer_norm1", size, spec.layer_norm_eps, context=context)
        outs = [Projection(name, size) for name in ("q_proj", "k_proj", "v_proj")]
        self.qkv = ColumnParallelLinear(size, outs, bias=True, context=attention)
        self.out = RowParallelLinear("out_proj", size, size, bias=True, context=attention)
        self.mlp_norm = LayerNorm("layer_norm2", size, spec.layer_norm_eps, context=context)
        self.up = ColumnParallelLinear(size, [Projection("fc1", inner)], bias=True, context=mlp)
        self.down = RowParallelLinear("fc2", inner, size, bias=True, context=mlp)
        self._self_attention = self_attention(self.attention_norm, self.qkv, spec.num_heads, self.out, context=context)
        self._feed_forward = feed_forward(self.mlp_norm, self.up, spec.activation, self.down, context=context)

    def forward(self, x: torch.Tensor, lengths: Sequence[int], angles: Angles | None = None) -> torch.Tensor:
        """[T, hidden], in place. The rows are sequences of these lengths; ``angles`` turn queries and keys."""
        if angles is None:
            self._self_attention(x, lengths)
        else:
            self._turned_attention(x, lengths, angles)
        self._feed_forward(x)
        return x

    def _turned_attention(self, x: torch.Tensor, lengths: Sequence[int], angles: Angles) -> None:
        qkv = self.qkv(self.attention_norm(x))
        heads = qkv.view(len(qkv), 3 * self._num_heads, -1)
        self._ops.rotary_(heads[:, : 2 * self._num_heads], *angles)
        self.out(self._ops.encoder_attention(qkv, self._num_heads, lengths), x)

    def targets(self) -> Iterator[tuple[str, Target]]:
        for part in (self.attention_norm, self.qkv, self.out, self.mlp_norm, self.up, self.down):
            yield from part.targets()
