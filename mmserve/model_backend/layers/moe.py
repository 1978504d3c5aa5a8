"""A mixture of experts (Shazeer et al. 2017): a router sends each token to a few of many gated MLPs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mmserve.checkpoint.spec import MoeSpec, TextSpec
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import (
    ColumnParallelLinear,
    Projection,
    ReplicatedLinear,
    RowParallelLinear,
)
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.residual import Residual
from mmserve.model_backend.layers.target import Target


def route(logits: torch.Tensor, spec: MoeSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, experts] -> weights float32 and experts int64 of each token, both [T, top_k]."""
    weights, experts = logits.softmax(dim=-1, dtype=torch.float32).topk(spec.top_k, dim=-1)
    return (weights / weights.sum(dim=-1, keepdim=True) if spec.renormalize else weights), experts


class Expert(nn.Module):
    """A gated MLP: [T, hidden] -> [T, hidden], this rank's summand."""

    def __init__(self, hidden: int, inner: int, activation: str, *, context: LayerContext) -> None:
        super().__init__()
        self._act_and_mul = context.ops.act_and_mul(activation)
        outs = [Projection("gate_proj", inner), Projection("up_proj", inner)]
        self.gate_up = ColumnParallelLinear(hidden, outs, bias=False, context=context)
        self.down = RowParallelLinear("down_proj", inner, hidden, bias=False, context=context)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down.summand(self._act_and_mul(self.gate_up(x)))

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.gate_up.targets()
        yield from self.down.targets()


class MoeMlp(nn.Module):
    """[T, hidden] -> [T, hidden], perhaps added to a residual.

    Each rank has a part of every expert's intermediate size, and all ranks route alike.
    """

    def __init__(self, spec: TextSpec, moe: MoeSpec, *, context: LayerContext) -> None:
        super().__init__()
        self._spec, self._tp = moe, context.tp
        self.router = ReplicatedLinear("gate", spec.hidden_size, moe.num_experts, context=context)
        self.experts = nn.ModuleList(
            Expert(
                spec.hidden_size,
                moe.intermediate_size,
                spec.activation,
                context=context.below(f"experts.{index}."),
            )
            for index in range(moe.num_experts)
        )

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Returns ``residual``, to which the result was added in place; without one the result.

        Experts are computed in ascending order, each for all of its tokens at once. So a token's sum has the same order
        in every batch.
        """
        weights, experts = route(self.router(x), self._spec)
        pairs = experts.flatten().argsort(stable=True)  # token * top_k + choice, by expert
        tokens, weights = pairs // self._spec.top_k, weights.flatten()[pairs, None].to(x.dtype)
        out = torch.zeros_like(x)
        first = 0
        for index, count in enumerate(experts.flatten().bincount(minlength=self._spec.num_experts).tolist()):
            if count:
                mine = slice(first, first + count)
                out.index_add_(0, tokens[mine], self.experts[index](x[tokens[mine]]) * weights[mine])
            first += count
        total = self._tp.sum(out)
        return total if residual is None else residual.add_(total)

    def add_to(self, stream: Residual, norm: RmsNorm, after: RmsNorm | None) -> None:
        """The block's result of the stream's ``norm``, or the norm ``after`` of it."""
        stream.add_block(self, norm, after)

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.router.targets()
        for expert in self.experts:
            assert isinstance(expert, Expert)
            yield from expert.targets()
