"""All experts of a layer at once: their matrices lie one behind the other, and one launch multiplies with all."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
import triton

from mmserve.checkpoint.spec import MoeSpec
from mmserve.model_backend.layers.grouped_experts import ExpertsShape
from mmserve.model_backend.layers.linear_method import LinearMethod
from mmserve.model_backend.layers.ops import Activation
from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu
from mmserve.model_backend.platforms.cuda.kernels.experts import add_pairs, multiply_pairs, route_rows, sort_pairs
from mmserve.model_backend.platforms.reference import PlainLinear

_LEAST_ROWS, _MOST_ROWS = 16, 64
_COMPARISONS = 8192
"""Of a program at once, between pairs and experts."""
_ADDED = 1024
"""Numbers of a program that adds results."""


class Routing(NamedTuple):
    """Which expert computes which rows of a step."""

    order: torch.Tensor
    """int32 [pairs], sorted by expert."""
    blocks: torch.Tensor
    """int32 [blocks, 3], see ``kernels.experts.sort_pairs``."""
    rows: int
    """Of a block."""


def max_blocks(num_pairs: int, num_experts: int, rows: int) -> int:
    """Blocks of so many rows that pairs can need, however they are spread over the experts."""
    used = min(num_pairs, num_experts)
    return (num_pairs + used * (rows - 1)) // rows


class ExpertKernels(Protocol):
    """What is computed with the matrices of all experts, [experts, out, in]."""

    def mixed(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        residual: torch.Tensor | None,
    ) -> torch.Tensor:
        """See ``GroupedExperts.forward``."""
        ...


class StackedExperts:
    """See ``layers.grouped_experts.GroupedExperts``."""

    def __init__(self, shape: ExpertsShape, kernels: ExpertKernels, dtype: torch.dtype, device: torch.device) -> None:
        count, hidden, inner = shape.moe.num_experts, shape.hidden_size, shape.intermediate_size
        self._kernels = kernels
        self._gate_up = torch.empty(count, 2 * inner, hidden, dtype=dtype, device=device)
        self._down = torch.empty(count, hidden, inner, dtype=dtype, device=device)

    def gate_up(self, expert: int) -> LinearMethod:
        return _OneExpert(self._gate_up[expert])

    def down(self, expert: int) -> LinearMethod:
        return _OneExpert(self._down[expert])

    def forward(self, x: torch.Tensor, logits: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return self._kernels.mixed(x, logits, self._gate_up, self._down, residual)


class _OneExpert(PlainLinear):
    """A matrix within others."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight


class TritonExperts:
    """See ``ExpertKernels``. Six launches, for any number of rows."""

    def __init__(self, spec: MoeSpec, act_and_mul: Activation) -> None:
        self._spec, self._act_and_mul = spec, act_and_mul

    def route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        spec, rows = self._spec, len(logits)
        weights = torch.empty(rows, spec.top_k, dtype=torch.float32, device=logits.device)
        experts = torch.empty(rows, spec.top_k, dtype=torch.int32, device=logits.device)
        with current_gpu(logits):
            route_rows[(rows,)](
                *(logits, weights, experts, logits.stride(0)),
                EXPERTS=spec.num_experts,
                PADDED=triton.next_power_of_2(spec.num_experts),
                TOP=spec.top_k,
                TOP_PADDED=triton.next_power_of_2(spec.top_k),
                RENORMALIZE=spec.renormalize,
            )
        return weights, experts

    def mixed(
        self,
        x: torch.Tensor,
        logits: torch.Tensor,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        residual: torch.Tensor | None,
    ) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty_like(x) if residual is None else residual
        if not len(x):
            return out
        assert out.is_contiguous()
        weights, experts = self.route(logits)
        routing = self._sorted(experts)
        inner = self._act_and_mul(self._product(x, gate_up, routing, of_tokens=True))
        results = self._product(inner, down, routing, of_tokens=False)
        with current_gpu(x):
            add_pairs[(len(x), triton.cdiv(x.shape[1], _ADDED))](
                *(results, weights, out, out),
                SIZE=x.shape[1],
                TOP=self._spec.top_k,
                COLUMNS=_ADDED,
                RESIDUAL=residual is not None,
            )
        return out

    def _sorted(self, experts: torch.Tensor) -> Routing:
        pairs, count = experts.numel(), self._spec.num_experts
        rows = min(_MOST_ROWS, max(_LEAST_ROWS, triton.next_power_of_2(triton.cdiv(pairs, count))))
        order = torch.empty(pairs, dtype=torch.int32, device=experts.device)
        blocks = torch.empty(max_blocks(pairs, count, rows), 3, dtype=torch.int32, device=experts.device)
        padded = triton.next_power_of_2(count)
        with current_gpu(experts):
            sort_pairs[(count,)](
                *(experts, order, blocks, pairs, len(blocks)),
                EXPERTS=count,
                PADDED=padded,
                ROWS=rows,
                TILE=max(16, _COMPARISONS // padded),
            )
        return Routing(order, blocks, rows)

    def _product(self, x: torch.Tensor, weights: torch.Tensor, routing: Routing, *, of_tokens: bool) -> torch.Tensor:
        """[pairs, out], sorted by expert if ``x`` has rows of tokens; else back in the order of the tokens."""
        _, outputs, inputs = weights.shape
        exact = x.dtype is torch.float32
        out = torch.empty(len(routing.order), outputs, dtype=x.dtype, device=x.device)
        columns = 128 if routing.rows == _MOST_ROWS and not exact else 64
        with current_gpu(x):
            multiply_pairs[(triton.cdiv(outputs, columns), len(routing.blocks))](
                *(x, weights, routing.order, routing.blocks, out),
                IN=inputs,
                OUT=outputs,
                TOP=self._spec.top_k,
                OF_TOKENS=of_tokens,
                ROWS=routing.rows,
                COLUMNS=columns,
                INNER=32 if exact else 64,
                UPCAST=bool(triton.knobs.runtime.interpret) or exact,
                STAGES=3,
            )
        return out
