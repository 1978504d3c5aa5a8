"""The feed-forward block of a vision tower's layer, with the norm before it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.norm import LayerNorm, RmsNorm
from mmserve.model_backend.layers.ops import FeedForward, Product


def feed_forward(
    norm: LayerNorm | RmsNorm,
    up: Product,
    activation: str,
    down: Product,
    *,
    gated: bool = False,
    scale: torch.Tensor | None = None,
    context: LayerContext,
) -> Callable[[torch.Tensor], None]:
    """A function that adds the block's result to rows [T, hidden] in place. See ``FeedForward``.

    ``context``: of one rank alone. Raises StartupError for an unknown activation.
    """
    context.ops.activation(activation)
    bias = norm.bias if isinstance(norm, LayerNorm) else None
    block = FeedForward(
        norm.weight, bias, norm.eps, up, activation, down, gated=gated, scale=scale, max_rows=context.max_mlp_rows
    )
    return partial(context.ops.feed_forward_, block=block)
