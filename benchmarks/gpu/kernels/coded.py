"""Cases of products with weights in few bits: codes as quantised checkpoints have them, and FP8 made of any weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec

import torch

from benchmarks.gpu.kernels.case import Bench, Case
from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.config.resolved.gpu_capability import ADA, HOPPER, Capability
from mmserve.model_backend.layers.linear_method import LinearMethod, LinearShape
from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.layers.target import LinearShard
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


def product_with_codes(bench: Bench) -> Iterator[Case]:
    """Activations stay as they are; each group of inputs of an output has a scale and a zero point."""
    for name, bits, float8, ordered in _FORMS:
        if float8 and not _is_at_least(bench, ADA):
            continue
        out, inner = _sizes(bench)
        matrix = _matrix(bench, out, inner, bits, float8=float8, ordered=ordered)
        for rows in (1, 33):
            yield Case(f"{name}, {rows} x {inner} -> {out}", partial(_with_codes, matrix, bench.random(rows, inner)))


def product_in_fp8(bench: Bench) -> Iterator[Case]:
    """``--quantization fp8``: both sides are rounded, by rows. What is exact is the product of the rounded numbers.
    Triton's kernel rounds, so without Triton there is nothing to compare."""
    if not multiplies_fp8(bench):
        return
    out, inner = _sizes(bench)
    weight = bench.random(out, inner)
    for rows in (1, 33):
        yield Case(f"{rows} x {inner} -> {out}", partial(_in_fp8, bench.random(rows, inner), weight))


def product_with_float8(bench: Bench) -> Iterator[Case]:
    """Two fused matrices of a checkpoint in FP8, with a scale each or one an output, through the layer that the
    platform chooses. What is exact is the product with inputs rounded by rows."""
    if not multiplies_fp8(bench):
        return
    out, inner = _sizes(bench)
    codes = bench.random(out, inner).float().to(torch.float8_e4m3fn)
    of_outputs = torch.rand(out, 1, generator=bench.generator) + 0.1
    of_matrices = of_outputs[:1].repeat(out, 1)
    of_matrices[out // 3 :] *= 3
    for name, scales in (("a matrix", of_matrices), ("an output", of_outputs)):
        weight = codes, scales, name == "a matrix"
        for rows in (1, 33):
            case = partial(_with_float8, bench.random(rows, inner), *weight)
            yield Case(f"one scale {name}, {rows} x {inner} -> {out}", case)


def product_with_blocks(bench: Bench) -> Iterator[Case]:
    """As ``product_with_float8``, with a scale for each 128 x 128 weights, and inputs rounded in groups of 128: first
    two matrices that fill whole blocks, then two that do not, so that outputs have scales of their own."""
    if not _is_at_least(bench, HOPPER) or _is_at_least(bench, (HOPPER[0] + 1, 0)) or find_spec("triton") is None:
        return
    inner = 3 * _GROUP if bench.small else 17 * _GROUP
    for name, sizes in (("whole", (2 * _GROUP, _GROUP)), ("cut", (_GROUP + 48, 80))):
        codes = bench.random(sum(sizes), inner).float().to(torch.float8_e4m3fn)
        scales = [torch.rand(-(-size // _GROUP), inner // _GROUP, generator=bench.generator) + 0.1 for size in sizes]
        for rows in (1, 33, 300):
            case = partial(_with_blocks, bench.random(rows, inner), codes, sizes, scales)
            yield Case(f"blocks, {name}, {rows} x {inner} -> {sum(sizes)}", case)


def _with_codes(matrix: QuantizedMatrix, x: torch.Tensor, platform: Platform) -> torch.Tensor:
    own = x.to(platform.device, platform.dtype)
    if isinstance(platform, CudaPlatform):
        from mmserve.model_backend.platforms.cuda.coded_linear import CodedWeights

        return CodedWeights.of(matrix, platform.device, "matrix").product(own)
    return own @ _dense(matrix).to(platform.device, platform.dtype).T


def _in_fp8(x: torch.Tensor, weight: torch.Tensor, platform: Platform) -> torch.Tensor:
    from mmserve.model_backend.platforms.cuda.fp8.forms import BY_ROWS
    from mmserve.model_backend.platforms.cuda.fp8.rows import quantized

    if isinstance(platform, CudaPlatform):
        rows = BY_ROWS.quantized(x.to(platform.device))
        return BY_ROWS.product(rows, quantized(weight.to(platform.device)), None, platform.dtype)
    sides = []
    for numbers, scales in map(quantized, (x, weight)):
        sides.append((numbers.double() * scales.double()).to(platform.device, platform.dtype))
    return sides[0] @ sides[1].T


def _with_float8(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, per_tensor: bool, platform: Platform
) -> torch.Tensor:
    from mmserve.model_backend.platforms.cuda.fp8.rows import quantized

    if isinstance(platform, CudaPlatform):
        scheme = QuantizationScheme(method="FP8", layout="fp8", bits=8, per_tensor=per_tensor, float8_inputs=True)
        third = len(codes) // 3
        parts = slice(0, third), slice(third, len(codes))
        stored = [scales[rows][:1] if per_tensor else scales[rows] for rows in parts]
        layer = _loaded(platform, scheme, [codes[rows] for rows in parts], stored)
        return layer.apply(x.to(platform.device, platform.dtype))
    numbers, own = quantized(x)
    sides = numbers.double() * own.double(), codes.double() * scales.double()
    left, right = (side.to(platform.device, platform.dtype) for side in sides)
    return left @ right.T


def _with_blocks(
    x: torch.Tensor, codes: torch.Tensor, sizes: tuple[int, int], scales: list[torch.Tensor], platform: Platform
) -> torch.Tensor:
    from mmserve.model_backend.platforms.cuda.fp8.rows import GROUP, quantized

    if isinstance(platform, CudaPlatform):
        block = (GROUP, GROUP)
        scheme = QuantizationScheme(method="FP8", layout="fp8", bits=8, block=block, float8_inputs=True)
        layer = _loaded(platform, scheme, codes.split(sizes), scales)
        return layer.apply(x.to(platform.device, platform.dtype))
    numbers, own = quantized(x, GROUP)
    of_outputs = torch.cat([part.repeat_interleave(GROUP, 0)[:size] for part, size in zip(scales, sizes, strict=True)])
    sides = [
        side.double() * factors.double().repeat_interleave(GROUP, 1)
        for side, factors in ((numbers, own), (codes, of_outputs))
    ]
    left, right = (side.to(platform.device, platform.dtype) for side in sides)
    return (left @ right.T)[: len(x)]


def _loaded(
    platform: CudaPlatform, scheme: QuantizationScheme, codes: Sequence[torch.Tensor], scales: Sequence[torch.Tensor]
) -> LinearMethod:
    """A layer of fused matrices."""
    names = [f"m{index}" for index in range(len(codes))]
    outputs, inputs = sum(map(len, codes)), codes[0].shape[1]
    layer = platform.checkpoint_linear_method(scheme, LinearShape.full(outputs, inputs, tuple(names)))
    row = 0
    for name, weight, scale in zip(names, codes, scales, strict=True):
        shard = LinearShard(name, (len(weight), inputs), slice(row, row + len(weight)), 0, 0)
        for tensor, target in layer.targets(shard):
            stored = scale if tensor.endswith("scale") else weight
            target.into.copy_(stored.reshape(target.into.shape))
        row += len(weight)
    layer.finish_loading()
    return layer


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


def multiplies_fp8(bench: Bench) -> bool:
    """Triton's kernels round, so without Triton nothing does."""
    return _is_at_least(bench, ADA) and find_spec("triton") is not None


def _is_at_least(bench: Bench, capability: Capability) -> bool:
    """A CPU is as a Hopper GPU."""
    own = torch.cuda.get_device_capability(bench.device) if bench.device.type == "cuda" else HOPPER
    return own >= capability
