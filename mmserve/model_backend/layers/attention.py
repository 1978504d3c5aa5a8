"""The attention block of Llama models: fused QKV, rotary positions, paged KV write, attention, output projection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.attention.interface import Attention
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.linear import ColumnParallelLinear, RowParallelLinear
from mmserve.model_backend.layers.rotary import rotate_
from mmserve.model_backend.loader.weights import Target


class SelfAttention(nn.Module):
    """``mix``, then ``out``: this rank's heads only, summed by the output projection."""

    def __init__(self, spec: TextSpec, attention: Attention, *, tp: TpGroup, like: torch.Tensor) -> None:
        super().__init__()
        self._attention = attention
        self._heads, self._kv_heads, self._dim = tp.share(spec.num_heads), tp.share(spec.num_kv_heads), spec.head_dim
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        outs = [("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)]
        self.qkv = ColumnParallelLinear(spec.hidden_size, outs, bias=spec.attention_bias, tp=tp, like=like)
        self.out = RowParallelLinear("o_proj", q_size, spec.hidden_size, bias=spec.attention_bias, tp=tp, like=like)

    def mix(
        self, x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor], layer_kv: torch.Tensor, layout: Any
    ) -> torch.Tensor:
        """[T, hidden] -> [T, heads * dim], what ``out`` projects; keeps K and V in ``layer_kv``."""
        heads = self.qkv(x).view(x.shape[0], self._heads + 2 * self._kv_heads, self._dim)
        rotate_(heads[:, : self._heads + self._kv_heads], angles)
        # A row's K and V heads are adjacent, exactly as the cache stores a token: one write for both.
        kv = heads[:, self._heads :].unflatten(1, (2, self._kv_heads))
        return self._attention(heads[:, : self._heads], kv, layer_kv, layout).flatten(1)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        yield from self.qkv.targets(prefix)
        yield from self.out.targets(prefix)
