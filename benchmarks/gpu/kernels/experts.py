"""Cases of a mixture of experts: the router's choice, all experts' products and their sum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.kernels.case import Bench, Case
from mmserve.checkpoint.spec import MoeSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.moe import MoeMlp
from mmserve.model_backend.platforms.interface import Platform


class _Sizes(NamedTuple):
    hidden: int
    inner: int
    experts: int
    top: int


_FULL, _SMALL = _Sizes(1024, 512, 32, 4), _Sizes(64, 24, 8, 2)


def mixture(bench: Bench) -> Iterator[Case]:
    """Few rows, and so many that an expert has blocks of them."""
    sizes = _SMALL if bench.small else _FULL
    weights = {
        "gate_proj": bench.random(sizes.experts, sizes.inner, sizes.hidden),
        "up_proj": bench.random(sizes.experts, sizes.inner, sizes.hidden),
        "down_proj": bench.random(sizes.experts, sizes.hidden, sizes.inner),
    }
    for rows in (1, 64) if bench.small else (1, 64, 1000):
        x = bench.random(rows, sizes.hidden)
        x[:, : sizes.experts] = _distinct(rows, sizes.experts, bench.generator)
        case = partial(_on, sizes, weights, x, bench.random(rows, sizes.hidden))
        yield Case(f"{rows} rows, {sizes.top} of {sizes.experts} experts, {sizes.hidden} x {sizes.inner}", case)


def _distinct(rows: int, experts: int, generator: torch.Generator) -> torch.Tensor:
    """Of each row: numbers that every dtype holds, no two alike. They are the router's logits, so that rounding chooses
    no other expert."""
    return torch.rand(rows, experts, generator=generator).argsort(1) / 16 - 2


def _on(
    sizes: _Sizes, weights: dict[str, torch.Tensor], x: torch.Tensor, residual: torch.Tensor, platform: Platform
) -> torch.Tensor:
    spec: Any = SimpleNamespace(hidden_size=sizes.hidden, activation="silu")
    moe = MoeSpec(num_experts=sizes.experts, top_k=sizes.top, intermediate_size=sizes.inner, renormalize=True)
    layer = MoeMlp(spec, moe, context=platform.layer_context(TpGroup()))
    own, base = (each.to(platform.device, platform.dtype, copy=True) for each in (x, residual))
    with torch.inference_mode():
        for name, target in layer.targets():
            target.into.copy_(_stored(name, weights, sizes))
        for each in layer.modules():
            if hasattr(each, "method"):
                each.method.finish_loading()
        result: torch.Tensor = layer(own, base)
    return result


def _stored(name: str, weights: dict[str, torch.Tensor], sizes: _Sizes) -> torch.Tensor:
    """``name``: gate.weight, or experts.INDEX.MATRIX.weight."""
    *parts, _ = name.split(".")
    if len(parts) == 1:
        return torch.eye(sizes.experts, sizes.hidden)
    return weights[parts[2]][int(parts[1])]
