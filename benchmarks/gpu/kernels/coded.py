"""Cases of products with weights in few bits: codes as quantised checkpoints have them, and FP8 made of any weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

import torch

from benchmarks.gpu.kernels.case import Bench, Case
from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.platforms.cuda.platform import CudaPlatform
from mmserve.model_backend.platforms.interface import Platform

_GROUP = 128
_FORMS = (
    ("4 bits", 4, False, False),
    ("4 bits, act-order", 4, False, True),
    ("8 bits", 8, False, False),
    ("FP8 by blocks", 8, True, False),
)
"""(name, bits, FP8 numbers, inputs in another order)."""
_READS_FP8 = (8, 9)


def product_with_codes(bench: Bench) -> Iterator[Case]:
    """Activations stay as they are; each group of inputs of an output has a scale and a zero point."""
    for name, bits, float8, ordered in _FORMS:
        if float8 and not _reads_fp8(bench):
            continue
        out, inner = _sizes(bench)
        matrix = _matrix(bench, out, inner, bits, float8=float8, ordered=ordered)
        for rows in (1, 33):
            yield Case(f"{name}, {rows} x {inner} -> {out}", partial(_with_codes, matrix, bench.random(rows, inner)))


def product_in_fp8(bench: Bench) -> Iterator[Case]:
    """``--quantization fp8``: both sides are rounded, by rows. What is exact is the product of the rounded numbers.
    Triton's kernel rounds, so without Triton there is nothing to compare."""
    if not _reads_fp8(bench) or find_spec("triton") is None:
        return
    out, inner = _sizes(bench)
    weight = bench.random(out, inner)
    for rows in (1, 33):
        yield Case(f"{rows} x {inner} -> {out}", partial(_in_fp8, bench.random(rows, inner), weight))


def _with_codes(matrix: QuantizedMatrix, x: torch.Tensor, platform: Platform) -> torch.Tensor:
    own = x.to(platform.device, platform.dtype)
    if isinstance(platform, CudaPlatform):
        from mmserve.model_backend.platforms.cuda.coded_linear import CodedWeights

        return CodedWeights.of(matrix, platform.device, "matrix").product(own)
    return own @ _dense(matrix).to(platform.device, platform.dtype).T


def _in_fp8(x: torch.Tensor, weight: torch.Tensor, platform: Platform) -> torch.Tensor:
    from mmserve.model_backend.platforms.cuda import fp8_linear

    if isinstance(platform, CudaPlatform):
        rows = fp8_linear.quantized_in_one_launch(x.to(platform.device))
        return fp8_linear.scaled_product(rows, fp8_linear.quantized(weight.to(platform.device)), platform.dtype)
    sides = []
    for numbers, scales in map(fp8_linear.quantized, (x, weight)):
        sides.append((numbers.double() * scales.double()).to(platform.device, platform.dtype))
    return sides[0] @ sides[1].T


def _matrix(bench: Bench, out: int, inner: int, bits: int, *, float8: bool, ordered: bool) -> QuantizedMatrix:
    generator, groups = bench.generator, inner // _GROUP
    codes = torch.randint(1 << bits, (out, inner), generator=generator, dtype=torch.uint8)
    zeros = torch.randint(1 << bits, (out, groups), generator=generator, dtype=torch.int16)
    if float8:
        codes = torch.randn(out, inner, generator=generator).to(torch.float8_e4m3fn).view(torch.uint8)
        zeros = torch.zeros_like(zeros)
    scales = torch.rand(out, groups, generator=generator) + 0.1
    order = torch.randperm(inner, generator=generator) if ordered else None
    return QuantizedMatrix(codes, scales, zeros, _GROUP, bits, is_float8=float8, order=order)


def _dense(matrix: QuantizedMatrix) -> torch.Tensor:
    """In float64, column i for input i."""
    codes = matrix.codes.view(torch.float8_e4m3fn) if matrix.is_float8 else matrix.codes
    zeros, scales = (each.double().repeat_interleave(_GROUP, 1) for each in (matrix.zeros, matrix.scales))
    weight = (codes.double() - zeros) * scales
    return weight if matrix.order is None else weight[:, matrix.order.argsort()]


def _sizes(bench: Bench) -> tuple[int, int]:
    """Outputs and inputs."""
    return (48, 256) if bench.small else (576, 2048)


def _reads_fp8(bench: Bench) -> bool:
    return bench.device.type != "cuda" or torch.cuda.get_device_capability(bench.device) >= _READS_FP8
