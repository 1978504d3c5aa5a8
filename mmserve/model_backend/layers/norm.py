"""Normalisation over the last dimension: RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.target import Target


class RmsNorm(nn.Module):
    """[T, size] -> [T, size]; statistics in float32.

    ``offset`` is added to the weights when they are loaded. The sums are float32, because in 16 bits they would lose
    the last bits of the weights.
    """

    def __init__(self, name: str, size: int, eps: float, *, context: LayerContext, offset: float = 0.0) -> None:
        super().__init__()
        self._name, self._ops, self.eps, self._offset = context.prefix + name, context.ops, eps, offset
        self.weight = context.empty(size).float() if offset else context.empty(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.rms_norm(x, self.weight, self.eps)

    def added(self, hidden: torch.Tensor, x: torch.Tensor, *, then: RmsNorm | None = None) -> torch.Tensor:
        """``hidden``, to which the norm of ``x`` was added in place; or the norm ``then`` of it."""
        return self._ops.add_normed_(hidden, x, self.weight, None if then is None else then.weight, self.eps)

    def heads_(self, x: torch.Tensor) -> None:
        """[T, heads, size], each head by itself, in place."""
        self._ops.head_norm_(x, self.weight, self.eps)

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield f"{self._name}.weight", Target(self.weight, tuple(self.weight.shape), offset=self._offset)


class LayerNorm(nn.Module):
    """[..., size] -> [..., size], with weight and bias."""

    def __init__(self, name: str, size: int, eps: float, *, context: LayerContext) -> None:
        super().__init__()
        self._name, self._ops, self.eps = context.prefix + name, context.ops, eps
        self.weight, self.bias = context.empty(size), context.empty(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.layer_norm(x, self.weight, self.bias, self.eps)

    def targets(self) -> Iterator[tuple[str, Target]]:
        shape = tuple(self.weight.shape)
        yield f"{self._name}.weight", Target(self.weight, shape)
        yield f"{self._name}.bias", Target(self.bias, shape)
