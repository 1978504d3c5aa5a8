"""The attention block of a vision tower's layer, with the norm before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.norm import LayerNorm, RmsNorm
from mmserve.model_backend.layers.ops import Product, SelfAttention


def self_attention(
    norm: LayerNorm | RmsNorm,
    qkv: Product,
    num_heads: int,
    out: Product,
    *,
    scale: torch.Tensor | None = None,
    context: LayerContext,
) -> Callable[[torch.Tensor, Sequence[int]], None]:
    """A function that adds the block's result to rows [T, hidden] in place, which are sequences of the given lengths.
    See ``SelfAttention``.

    ``context``: of one rank alone.
    """
    bias = norm.bias if isinstance(norm, LayerNorm) else None
    block = SelfAttention(norm.weight, bias, norm.eps, qkv, num_heads, out, scale)
    return partial(context.ops.self_attention_, block=block)
