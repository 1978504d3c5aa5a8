"""Cases of norms and gates whose results are FP8 numbers, for the product behind them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.gpu.kernels.case import Bench, Case
from benchmarks.gpu.kernels.coded import multiplies_fp8
from mmserve.model_backend.layers.ops import Addend
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from mmserve.model_backend.platforms.interface import Platform

_EPS = 1e-6
_SIZES = ((1, 4096), (33, 1536), (300, 3584))
_INNER_SIZES = ((1, 14_336), (33, 8960), (64, 18_944))
_GROUPS = (None, 128)


def normed(bench: Bench) -> Iterator[Case]:
    """Alone, behind a sum, and behind a sum with another norm."""
    for group, (rows, size) in _cases(bench, _SIZES):
        hidden, values = bench.random(rows, size), bench.random(rows, size)
        weight, other = bench.random(size), bench.random(size)
        kinds = ("alone", None), ("a sum", Addend(values, None)), ("a normed sum", Addend(values, other))
        for name, addend in kinds:
            yield Case(f"{_said(group)}, {name}, {rows} x {size}", partial(_normed, hidden, weight, addend, group))


def gated(bench: Bench) -> Iterator[Case]:
    for group, (rows, size) in _cases(bench, _INNER_SIZES):
        for name in ("silu", "gelu_pytorch_tanh"):
            x = bench.random(rows, 2 * size)
            yield Case(f"{_said(group)}, {name}, {rows} x {size}", partial(_gated, x, name, group))


def _normed(
    hidden: torch.Tensor, weight: torch.Tensor, addend: Addend | None, group: int | None, platform: Platform
) -> torch.Tensor:
    from mmserve.model_backend.platforms.cuda.fp8 import launches
    from mmserve.model_backend.platforms.cuda.fp8.rows import quantized, widened

    stream, own_weight = (_own(each, platform) for each in (hidden, weight))
    own = None
    if addend is not None:
        norm_weight = None if addend.norm_weight is None else _own(addend.norm_weight, platform)
        own = Addend(_own(addend.values, platform), norm_weight)
    if isinstance(platform, CudaPlatform):
        return widened(launches.normed(stream, own_weight, _EPS, own, group), len(hidden))
    ops = platform.ops()
    if own is None:
        result = ops.rms_norm(stream, own_weight, _EPS)
    else:
        result = ops.add_normed_(stream, own.values, own.norm_weight, own_weight, _EPS)
    return widened(quantized(result, group), len(hidden))


def _gated(x: torch.Tensor, name: str, group: int | None, platform: Platform) -> torch.Tensor:
    from mmserve.model_backend.platforms.cuda.fp8 import launches
    from mmserve.model_backend.platforms.cuda.fp8.rows import quantized, widened
    from mmserve.model_backend.platforms.cuda.row_ops import GATES

    own = _own(x, platform)
    if isinstance(platform, CudaPlatform):
        return widened(launches.gated(own, GATES[name], group), len(x))
    return widened(quantized(platform.ops().act_and_mul(name)(own), group), len(x))


def _own(tensor: torch.Tensor, platform: Platform) -> torch.Tensor:
    return tensor.to(platform.device, platform.dtype, copy=True)


def _cases(bench: Bench, sizes: tuple[tuple[int, int], ...]) -> Iterator[tuple[int | None, tuple[int, int]]]:
    if not multiplies_fp8(bench):
        return
    for group in _GROUPS:
        for rows, size in sizes[:2] if bench.small else sizes:
            yield group, (min(rows, 5), 256) if bench.small else (rows, size)


def _said(group: int | None) -> str:
    return "a scale a row" if group is None else f"a scale for {group}"
