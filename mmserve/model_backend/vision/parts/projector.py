"""The two-layer MLP that most families put between their tower and the language model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection
from mmserve.model_backend.layers.target import Target


class Projector(nn.Module):
    """[..., in] -> [..., inner] -> [..., out], with an activation between."""

    def __init__(
        self, in_size: int, inner_size: int, out_size: int, *, activation: str, bias: bool, context: LayerContext
    ) -> None:
        super().__init__()
        self._act = context.ops.activation(activation)
        self.first = ColumnParallelLinear(in_size, [Projection("linear_1", inner_size)], bias=bias, context=context)
        self.second = ColumnParallelLinear(inner_size, [Projection("linear_2", out_size)], bias=bias, context=context)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.second(self._act(self.first(features)))  # type: ignore[no-any-return]

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.first.targets()
        yield from self.second.targets()
