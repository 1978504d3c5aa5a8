"""Whether a GPU computes all experts of a layer at once: if Triton's kernels give what torch does."""

from __future__ import annotations

import logging
from functools import lru_cache, partial

import torch

from mmserve.checkpoint.spec import MoeSpec
from mmserve.model_backend.layers.grouped_experts import ExpertsShape, GroupedExperts
from mmserve.model_backend.layers.moe import route
from mmserve.model_backend.platforms.cuda.experts.grouped import StackedExperts, TritonExperts
from mmserve.model_backend.platforms.cuda.trying import KERNEL_ERRORS, in_short
from mmserve.model_backend.platforms.torch_ops import TorchOps

_TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Of a result's relative error."""
_TESTED = MoeSpec(num_experts=5, top_k=2, intermediate_size=48, renormalize=True)
_HIDDEN = 80
logger = logging.getLogger(__name__)


def grouped_experts(dtype: torch.dtype, device: torch.device, shape: ExpertsShape) -> GroupedExperts | None:
    """None where the kernels do not work, with a warning: then the host waits for the router in every layer."""
    if problem := problem_with_experts(device, dtype):
        _warn_once(problem)
        return None
    return StackedExperts(shape, TritonExperts(shape.moe, shape.act_and_mul), dtype, device)


@lru_cache
def problem_with_experts(device: torch.device, dtype: torch.dtype) -> str:
    """Why this GPU does not compute what float64 gives, for few rows and for blocks of many; empty if it does."""
    act_and_mul = TorchOps().act_and_mul("silu")
    kernels, generator = TritonExperts(_TESTED, act_and_mul), torch.Generator().manual_seed(0)
    random = partial(_random, generator, device, dtype)
    gate_up = random(_TESTED.num_experts, 2 * _TESTED.intermediate_size, _HIDDEN)
    down = random(_TESTED.num_experts, _HIDDEN, _TESTED.intermediate_size)
    for rows in (3, 90):
        x, logits, residual = random(rows, _HIDDEN), random(rows, _TESTED.num_experts), random(rows, _HIDDEN)
        exact = residual.double().cpu() + exact_mixture(x, logits, gate_up, down, _TESTED)
        try:
            found = kernels.mixed(x, logits, gate_up, down, residual).double().cpu()
        except KERNEL_ERRORS as error:
            return in_short(error)
        if not (wrong := float((found - exact).norm() / exact.norm())) < _TOLERANCES[dtype]:
            return f"relative error {wrong:.2g}"
    return ""


def exact_mixture(
    x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, spec: MoeSpec
) -> torch.Tensor:
    """In float64 on the CPU, with every expert for every row, of silu MLPs."""
    rows, first, last = (each.double().cpu() for each in (x, gate_up, down))
    weights, experts = route(logits.cpu(), spec)
    inner = TorchOps().act_and_mul("silu")(torch.einsum("th,eih->tei", rows, first).flatten(0, 1))
    every = torch.einsum("tei,ehi->teh", inner.view(len(rows), len(last), -1), last)
    chosen = every.gather(1, experts[..., None].expand(-1, -1, every.shape[2]))
    return (chosen * weights[..., None]).sum(1)


def _random(generator: torch.Generator, device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator).to(device, dtype)


@lru_cache
def _warn_once(problem: str) -> None:
    logger.warning("experts are computed one by one, and steps launch by launch: the kernels do not work (%s)", problem)
