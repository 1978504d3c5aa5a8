"""The gated feed-forward block of Llama models (SwiGLU, Shazeer 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection, RowParallelLinear
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.residual import Residual
from mmserve.model_backend.layers.target import Target


class MlpSpec(Protocol):
    """The part of a model's spec that the block needs: a ``TextSpec``, or that of a vision tower."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def intermediate_size(self) -> int: ...

    @property
    def mlp_bias(self) -> bool: ...

    @property
    def activation(self) -> str: ...


class GatedMlp(nn.Module):
    """[T, hidden] -> [T, hidden], perhaps added to a residual."""

    def __init__(self, spec: MlpSpec, *, context: LayerContext) -> None:
        super().__init__()
        hidden, inner, bias = spec.hidden_size, spec.intermediate_size, spec.mlp_bias
        self._gated = context.ops.gated_product(spec.activation)
        self._max_rows = context.max_mlp_rows
        self.gate_up = ColumnParallelLinear(
            hidden, [Projection("gate_proj", inner), Projection("up_proj", inner)], bias=bias, context=context
        )
        self.down = RowParallelLinear("down_proj", inner, hidden, bias=bias, context=context)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Returns ``residual``, to which the result was added in place; without one the result."""
        if residual is None and (self._max_rows is None or len(x) <= self._max_rows):
            return self.down(self.gate_up(x), None, self._gated)  # type: ignore[no-any-return]
        residual = torch.zeros_like(x) if residual is None else residual
        step = self._max_rows or max(1, len(x))
        for first in range(0, len(x), step):
            rows = slice(first, first + step)
            self.down(self.gate_up(x[rows]), residual[rows], self._gated)
        return residual

    def add_to(self, stream: Residual, norm: RmsNorm, after: RmsNorm | None) -> None:
        """The block's result of the stream's ``norm``, or the norm ``after`` of it."""
        if self._max_rows is None or len(stream) <= self._max_rows:
            stream.add_product(self.down, stream.product(norm, self.gate_up), after=after, multiply=self._gated)
        else:
            stream.add_block(self, norm, after)

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.gate_up.targets()
        yield from self.down.targets()
