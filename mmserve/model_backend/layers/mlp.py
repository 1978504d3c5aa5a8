"""The gated feed-forward block of Llama models (SwiGLU, Shazeer 2020)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mmserve.checkpoint.spec import TextSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.activation import gate
from mmserve.model_backend.layers.linear import ColumnParallelLinear, RowParallelLinear
from mmserve.model_backend.loader.weights import Target

CPU_ROWS = 512
"""What is between the two products is several times as wide as a row, and in memory for so many rows only."""


class GatedMlp(nn.Module):
    """[T, hidden] -> added to [T, hidden]."""

    def __init__(self, spec: TextSpec, *, tp: TpGroup, like: torch.Tensor) -> None:
        super().__init__()
        inner, outs = spec.intermediate_size, ("gate_proj", "up_proj")
        self._gate = gate(spec.activation)
        self._rows_at_once = CPU_ROWS if like.device.type == "cpu" else None
        self.gate_up = ColumnParallelLinear(
            spec.hidden_size, [(name, inner) for name in outs], bias=spec.mlp_bias, tp=tp, like=like
        )
        self.down = RowParallelLinear("down_proj", inner, spec.hidden_size, bias=spec.mlp_bias, tp=tp, like=like)

    def forward(self, x: torch.Tensor, onto: torch.Tensor) -> torch.Tensor:
        """Returns ``onto``, to which the result was added in place."""
        rows = self._rows_at_once or max(1, len(x))
        for first in range(0, len(x), rows):
            some = slice(first, first + rows)
            self.down(self._gate(self.gate_up(x[some])), onto[some])
        return onto

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        yield from self.gate_up.targets(prefix)
        yield from self.down.targets(prefix)
