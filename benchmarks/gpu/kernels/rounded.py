"""Cases of norms, attention and gates whose results are FP8 numbers, for the product behind them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.kernels.attention import Attended, Chunk
from benchmarks.gpu.kernels.case import Bench, Case
from benchmarks.gpu.kernels.coded import multiplies_fp8
from mmserve.model_backend.attention.interface import AttentionSpec
from mmserve.model_backend.layers.ops import Addend
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from mmserve.model_backend.platforms.interface import Platform

_EPS = 1e-6
_SIZES = ((1, 4096), (33, 1536), (300, 3584))
_INNER_SIZES = ((1, 14_336), (33, 8960), (64, 18_944))
_GROUPS = (None, 128)
_HEADS, _SMALL_HEADS = ((32, 8, 128), (14, 2, 64), (28, 4, 128)), ((4, 2, 64),)
"""(query heads, KV heads, dim)."""
_STEPS = {
    "decoding": tuple(Chunk(start) for start in (2000, 299, 256, 255, 64, 15, 0)),
    "decoding beside a prompt": (Chunk(700), Chunk(3), Chunk(300, 5), Chunk(128, 40)),
}


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


def attended(bench: Bench) -> Iterator[Case]:
    """Rows whose heads one program writes, and rows whose heads many programs add up."""
    if not multiplies_fp8(bench):
        return
    for heads, kv_heads, dim in _SMALL_HEADS if bench.small else _HEADS:
        spec = AttentionSpec(heads, kv_heads, dim)
        for name, every in _STEPS.items():
            chunks = every[1:] if bench.small else every
            made = [bench.random(chunk.start + chunk.count, heads + 2 * kv_heads, dim) for chunk in chunks]
            for group in _GROUPS:
                case = partial(_attended, Attended(spec, chunks, made), group)
                yield Case(f"{_said(group)}, {heads} heads of {dim}, {name}", case)


class _Rounded:
    """A backend, with a result that is rounded to FP8."""

    def __init__(self, backend: Any, group: int | None) -> None:
        self._backend, self._group = backend, group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, q: torch.Tensor, *step: Any) -> torch.Tensor:
        from mmserve.model_backend.platforms.cuda.fp8 import launches
        from mmserve.model_backend.platforms.cuda.fp8.rows import quantized, widened

        if hasattr(self._backend, "unmerged"):
            return widened(launches.attended(self._backend.unmerged(q, *step), self._group), len(q))
        return widened(quantized(self._backend.forward(q, *step).flatten(1), self._group), len(q))


def _attended(step: Attended, group: int | None, platform: Platform) -> torch.Tensor:
    backend = platform.attention(step.spec, platform.dtype)
    with torch.inference_mode():
        return step.by(_Rounded(backend, group), platform)


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
