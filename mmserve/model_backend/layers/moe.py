"""A mixture of experts (Shazeer et al. 2017): a router sends each token to a few of many gated MLPs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from mmserve.checkpoint.spec import MoeSpec, TextSpec
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.grouped_experts import ExpertsShape, GroupedExperts
from mmserve.model_backend.layers.linear import (
    ColumnParallelLinear,
    Projection,
    ReplicatedLinear,
    RowParallelLinear,
)
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.residual import Residual
from mmserve.model_backend.layers.target import Target

_FUSED = ("gate_proj", "up_proj")


def route(logits: torch.Tensor, spec: MoeSpec) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, experts] -> weights float32 and experts int64 of each token, both [T, top_k]."""
    weights, experts = logits.softmax(dim=-1, dtype=torch.float32).topk(spec.top_k, dim=-1)
    return (weights / weights.sum(dim=-1, keepdim=True) if spec.renormalize else weights), experts


class Expert(nn.Module):
    """A gated MLP: [T, hidden] -> [T, hidden], this rank's summand."""

    def __init__(
        self, spec: TextSpec, moe: MoeSpec, index: int, *, grouped: GroupedExperts | None, context: LayerContext
    ) -> None:
        """``grouped``: what holds its matrices, if it does not compute alone."""
        super().__init__()
        context = context.below(f"experts.{index}.")
        first = last = context
        if grouped is not None:
            first = replace(context, linear_method=lambda shape: grouped.gate_up(index))
            last = replace(context, linear_method=lambda shape: grouped.down(index))
        self._act_and_mul = context.ops.act_and_mul(spec.activation)
        inner, outs = moe.intermediate_size, (Projection(name, moe.intermediate_size) for name in _FUSED)
        self.gate_up = ColumnParallelLinear(spec.hidden_size, [*outs], bias=False, context=first)
        self.down = RowParallelLinear("down_proj", inner, spec.hidden_size, bias=False, context=last)

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
        inner, act_and_mul = context.tp.share(moe.intermediate_size), context.ops.act_and_mul(spec.activation)
        self._grouped = context.grouped_experts(ExpertsShape(moe, spec.hidden_size, inner, act_and_mul))
        self.router = ReplicatedLinear("gate", spec.hidden_size, moe.num_experts, context=context)
        self.experts = nn.ModuleList(
            Expert(spec, moe, index, grouped=self._grouped, context=context) for index in range(moe.num_experts)
        )
        adds_up = self._grouped is not None and context.tp.size == 1
        self._adds_residual = adds_up or not context.ops.adds_in_norms

    @property
    def is_capturable(self) -> bool:
        """See ``models.interface.DecoderModel``."""
        return self._grouped is not None

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Returns ``residual``, to which the result was added in place; without one the result."""
        logits = self.router(x)
        if self._grouped is None:
            out = self._one_by_one(x, logits)
        elif self._tp.size == 1:
            return self._grouped.forward(x, logits, residual)
        else:
            out = self._grouped.forward(x, logits)
        total = self._tp.sum(out)
        return total if residual is None else residual.add_(total)

    def _one_by_one(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Experts are computed in ascending order, each for all of its tokens at once. So a token's sum has the same
        order in every batch. The host waits for the router."""
        weights, experts = route(logits, self._spec)
        pairs = experts.flatten().argsort(stable=True)  # token * top_k + choice, by expert
        tokens, weights = pairs // self._spec.top_k, weights.flatten()[pairs, None].to(x.dtype)
        out = torch.zeros_like(x)
        first = 0
        for index, count in enumerate(experts.flatten().bincount(minlength=self._spec.num_experts).tolist()):
            if count:
                mine = slice(first, first + count)
                out.index_add_(0, tokens[mine], self.experts[index](x[tokens[mine]]) * weights[mine])
            first += count
        return out

    def add_to(self, stream: Residual, norm: RmsNorm, after: RmsNorm | None) -> None:
        """The block's result of the stream's ``norm``, or the norm ``after`` of it."""
        stream.add_block(self, norm, after, adds_residual=self._adds_residual)

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.router.targets()
        for expert in self.experts:
            assert isinstance(expert, Expert)
            yield from expert.targets()
