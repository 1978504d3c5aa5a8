"""The attention block of Llama models: fused QKV, rotary embedding, paged attention, output projection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import AttentionBackend
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, RowParallelLinear
from mmserve.model_backend.layers.rotary import Angles
from mmserve.model_backend.layers.target import Target


class SelfAttention(nn.Module):
    """``attend``, then ``out``. Each rank has its own heads; the output projection sums over the ranks."""

    def __init__(self, spec: TextSpec, backend: AttentionBackend[Any], *, context: LayerContext) -> None:
        super().__init__()
        self._backend, self._ops = backend, context.ops
        self._heads, self._kv_heads = context.tp.share(spec.num_heads), context.tp.share(spec.num_kv_heads)
        self._dim = spec.head_dim
        hidden = spec.hidden_size
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        outs = [("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)]
        self.qkv = ColumnParallelLinear(hidden, outs, bias=spec.qkv_bias, context=context)
        self.out = RowParallelLinear("o_proj", q_size, hidden, bias=spec.attention_out_bias, context=context)

    def attend(self, x: torch.Tensor, angles: Angles, layer_kv: torch.Tensor, metadata: Any) -> torch.Tensor:
        """[T, hidden] -> [T, heads * dim], the input of ``out``. Stores K and V in ``layer_kv``."""
        heads = self.qkv(x).view(x.shape[0], self._heads + 2 * self._kv_heads, self._dim)
        self._ops.rotary_(heads[:, : self._heads + self._kv_heads], *angles)
        # A row's K and V heads are adjacent, as the cache stores a token: one write for both.
        kv = heads[:, self._heads :].unflatten(1, (2, self._kv_heads))
        return self._backend.forward(heads[:, : self._heads], kv, layer_kv, metadata).flatten(1)

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.qkv.targets()
        yield from self.out.targets()
