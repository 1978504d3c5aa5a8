"""Normalisation over the last dimension: RMSNorm (Zhang and Sennrich 2019) and LayerNorm (Ba et al. 2016)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.ops import Addend, Product
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

    def forward(self, x: torch.Tensor, addend: Addend | None = None) -> torch.Tensor:
        """``addend`` is added to ``x`` in place first."""
        if addend is None:
            return self._ops.rms_norm(x, self.weight, self.eps)
        return self._ops.add_normed_(x, addend.values, addend.norm_weight, self.weight, self.eps)

    def product(self, x: torch.Tensor, linear: Product, addend: Addend | None) -> torch.Tensor:
        """Of the norm of ``x``, to which ``addend`` is added in place first."""
        return self._ops.normed_product(x, self.weight, self.eps, linear, addend)

    def add_to(self, hidden: torch.Tensor, x: torch.Tensor) -> None:
        """The norm of ``x``, in place."""
        self._ops.add_normed_(hidden, x, self.weight, None, self.eps)

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
