"""The attention block: fused QKV, norms of heads, rotary embedding, paged attention, output projection."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from mmserve.checkpoint.spec import LayerSpec, TextSpec
from mmserve.model_backend.attention.interface import (
    UNTURNED,
    AttentionBackend,
    AttentionSpec,
    AttentionStep,
    HeadTurn,
    Mask,
    RopeRows,
)
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.head_turn import turn_heads_
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection, RowParallelLinear
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.ops import Attended
from mmserve.model_backend.layers.rotary import Angles
from mmserve.model_backend.layers.target import Target


class SelfAttention(nn.Module):
    """``qkv``, ``attend``, then ``out``. Each rank has its own heads; the output projection sums over the ranks."""

    def __init__(
        self,
        spec: TextSpec,
        backend: AttentionBackend[Any],
        *,
        layer: LayerSpec,
        rope: RopeRows | None,
        context: LayerContext,
    ) -> None:
        """``rope``: None if nothing turns."""
        super().__init__()
        self._backend, self._ops, self.rope = backend, context.ops, rope
        self.mask = Mask(layer.window, layer.whole_images)
        self._adjacent = layer.rope is not None and layer.rope.adjacent
        self._heads, self._kv_heads, self._dim, *_ = AttentionSpec.of(spec, context.tp)
        hidden, dim = spec.hidden_size, spec.head_dim
        kv = (Projection(name, spec.num_kv_heads, dim) for name in ("k_proj", "v_proj"))
        outs = [Projection("q_proj", spec.num_heads, dim), *kv]
        self.qkv = ColumnParallelLinear(hidden, outs, bias=spec.qkv_bias, context=context)
        self.q_norm = self.k_norm = None
        if spec.qk_norm:
            norm = partial(RmsNorm, size=dim, eps=spec.rms_eps, offset=spec.norm_offset, context=context)
            self.q_norm, self.k_norm = norm("q_norm"), norm("k_norm")
        self.out = RowParallelLinear(
            "o_proj", spec.num_heads * dim, hidden, bias=spec.attention_out_bias, context=context
        )

    def attend(
        self, qkv: torch.Tensor, angles: Angles, layer_kv: torch.Tensor, metadata: Any, *, complete: bool
    ) -> Attended:
        """What ``qkv`` made -> the input of ``out``. Stores K and V in ``layer_kv``.

        ``complete``: its values are, so that some of the rows can go on alone.
        """
        heads = qkv.view(len(qkv), self._heads + 2 * self._kv_heads, self._dim)
        q = heads[:, : self._heads]
        turn = self._turn(angles)
        if not self._backend.turns_heads:
            turn_heads_(self._ops, heads, self._heads, self._kv_heads, turn)
            turn = UNTURNED
        # A row's K and V heads are adjacent, as the cache stores a token: one write for both.
        kv = heads[:, self._heads :].view(len(qkv), 2, self._kv_heads, self._dim)
        step = AttentionStep(q, kv, layer_kv, metadata, self.mask, turn)
        if complete:
            return Attended(self._backend.forward(*step).flatten(1))
        return self._ops.attended(self._backend, step, self.out.method)

    def _turn(self, angles: Angles) -> HeadTurn:
        q_norm, k_norm = self.q_norm, self.k_norm
        if q_norm is None or k_norm is None:
            return HeadTurn(cos=angles[0], sin=angles[1], ropes=self.rope, adjacent=self._adjacent)
        return HeadTurn(q_norm.weight, k_norm.weight, q_norm.eps, *angles, self.rope, self._adjacent)

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.qkv.targets()
        for norm in (self.q_norm, self.k_norm):
            yield from () if norm is None else norm.targets()
        yield from self.out.targets()
