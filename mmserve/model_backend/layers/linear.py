"""Linear layers whose outputs (column parallel) or inputs (row parallel) are split over the ranks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear_method import LinearMethod, LinearShape
from mmserve.model_backend.layers.ops import Multiply
from mmserve.model_backend.layers.target import LinearShard, Target


class LinearLayer(nn.Module, ABC):
    """A layer with a weight matrix, which its ``method`` owns, and perhaps a bias [out]."""

    method: LinearMethod
    bias: torch.Tensor | None = None

    @abstractmethod
    def targets(self) -> Iterator[tuple[str, Target]]:
        """(canonical name, target) of each checkpoint tensor of the layer."""


class LayerFinisher:
    """Converts a linear layer's weights into the layout that it multiplies with as soon as its tensors are loaded.

    So only one layer at a time exists in both layouts.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._layers: dict[str, LinearLayer] = {}
        self._num_missing: dict[LinearLayer, int] = {}
        for layer in modules:
            if isinstance(layer, LinearLayer):
                names = [name for name, _ in layer.targets()]
                self._layers |= dict.fromkeys(names, layer)
                self._num_missing[layer] = len(names)

    @torch.inference_mode()
    def loaded(self, name: str) -> None:
        """The tensor with this canonical name is in its target."""
        if layer := self._layers.get(name):
            self._num_missing[layer] -= 1
            if not self._num_missing[layer]:
                layer.method.finish_loading()


class Projection(NamedTuple):
    """One of the matrices that a layer fuses: [heads * width, in]. Heads are not cut."""

    name: str
    """In the checkpoint."""
    heads: int
    width: int = 1


class ColumnParallelLinear(LinearLayer):
    """Several projections of one input, fused: [T, in] -> [T, this rank's part of each].

    ``outs``: in the order of the result's columns. Each is split by heads (``TpGroup.heads``).
    """

    def __init__(self, in_size: int, outs: Sequence[Projection], *, bias: bool, context: LayerContext) -> None:
        super().__init__()
        self.in_size, self._tp = in_size, context.tp
        self._outs = tuple(out._replace(name=context.prefix + out.name) for out in outs)
        rows = sum(context.tp.heads(out.heads).num * out.width for out in outs)
        self.method = context.linear_method(LinearShape.full(rows, in_size, tuple(out.name for out in self._outs)))
        self.bias = context.empty(rows) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.apply(x, self.bias)

    def targets(self) -> Iterator[tuple[str, Target]]:
        row = 0
        for name, heads, width in self._outs:
            share = self._tp.heads(heads)
            size, start, end = heads * width, share.first * width, row + share.num * width
            rows = slice(row, end)
            yield from self.method.targets(LinearShard(name, (size, self.in_size), rows, dim=0, start=start))
            if self.bias is not None:
                yield f"{name}.bias", Target(self.bias[rows], (size,), start=start)
            row = end


class ReplicatedLinear(LinearLayer):
    """[T, in] -> [T, out], the same on every rank. Never quantized: for small matrices whose results decide much."""

    def __init__(self, name: str, in_size: int, out_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._name, self._shape = context.prefix + name, (out_size, in_size)
        self.method = context.linear_method(LinearShape.full(*self._shape, (self._name,), quantizable=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.method.apply(x)

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.method.targets(LinearShard(self._name, self._shape, slice(0, self._shape[0]), dim=0, start=0))


class RowParallelLinear(LinearLayer):
    """[T, in / ranks] -> [T, out], summed over ranks, then the bias once; perhaps added to a residual."""

    def __init__(self, name: str, in_size: int, out_size: int, *, bias: bool, context: LayerContext) -> None:
        super().__init__()
        self._name, self._shape, self._tp = context.prefix + name, (out_size, in_size), context.tp
        self.in_size = context.tp.share(in_size)
        self.method = context.linear_method(LinearShape.full(out_size, self.in_size, (self._name,)))
        self.bias = context.empty(out_size) if bias else None
        self.adds_residual = self.method.adds_residual
        """While it multiplies, or in a pass that no norm behind it would save."""
        if context.tp.size > 1:  # only once the ranks have added up
            self.adds_residual = not context.ops.adds_in_norms

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None, multiply: Multiply | None = None
    ) -> torch.Tensor:
        """Returns ``residual``, to which the result was added in place; without one the result.

        ``multiply``: in place of the method's own ``apply``; x may then have another width.
        """
        apply = self.method.apply if multiply is None else partial(multiply, self.method)
        if self._tp.size == 1:
            return apply(x, self.bias, residual)
        total = self._tp.sum(apply(x, None, None))
        out = total if residual is None else residual.add_(total)
        return out if self.bias is None else out.add_(self.bias)

    def summand(self, x: torch.Tensor) -> torch.Tensor:
        """[T, in / ranks] -> [T, out], which the ranks must add up; without the bias."""
        return self.method.apply(x)

    def targets(self) -> Iterator[tuple[str, Target]]:
        rows, start = slice(0, self._shape[0]), self._tp.rank * self.in_size
        yield from self.method.targets(LinearShard(self._name, self._shape, rows, dim=1, start=start))
        if self.bias is not None:
            yield f"{self._name}.bias", Target(self.bias, self._shape[:1])
