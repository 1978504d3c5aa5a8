"""Compares the products of the C++ kernels with torch's, in every layout of weights."""

from __future__ import annotations

import ctypes

import torch
import torch.nn.functional as F

from mmserve.model_backend.layers.quantized.gguf import blocks
from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.platforms.cpu.linear import gguf_weights, grouped_weights, quantization
from mmserve.model_backend.platforms.cpu.linear.packed_weights import EMULATED_TILES, TILED, format_of, pack

TOLERANCE = 1e-5
_QUANTIZED_TOLERANCE = 1e-4
"""Relative to the largest result; for quantized weights, whose inputs are rounded to 16-bit integers."""
_ROWS = 20


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def right_products(kernels: ctypes.CDLL) -> bool:
    """True if all are."""
    weight, x, bias = random(80, 64), random(_ROWS, 64, seed=1), random(80, seed=2)
    float32 = weight[:, :41].contiguous()
    bfloat16 = float32.bfloat16().float()
    packed, rounded = pack(bfloat16), x[:, :41].bfloat16().float()
    return (
        _product(kernels, x[:, :41], pack(float32), bias, float32)
        and _product(kernels, x[:, :41], packed, bias, bfloat16)
        and _product(kernels, rounded, packed, bias, bfloat16, rounds_inputs=True)
        and _tiled_product(kernels, x[:, :41], bias, bfloat16)
        and all(_rounded_product(kernels, x, bias, weight, kind) for kind in (quantization.INT8, quantization.INT4))
        and all(_grouped_product(kernels, x, bias, bits) for bits in (4, 8))
        and _float8_product(kernels, x, bias)
        and _gguf_product(kernels, bias)
    )


def _tiled_product(kernels: ctypes.CDLL, x: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor) -> bool:
    """True if products in tile registers are products, and have the bits of those without these registers.

    Some rows have denormal products, which such registers take for zeros.
    """
    packed, rounded = pack(weight), x.bfloat16().float()
    if not _product(kernels, rounded, packed, bias, weight, form=TILED):
        return False
    x, zeros = x * torch.logspace(-40, 0, len(x))[:, None], torch.zeros_like(bias)
    return torch.equal(*(_multiply(kernels, x, packed, zeros, form) for form in (TILED, EMULATED_TILES)))


def _grouped_product(kernels: ctypes.CDLL, x: torch.Tensor, bias: torch.Tensor, bits: int) -> bool:
    """True if products with a quantized checkpoint's weights are those with the numbers they stand for."""
    outputs, inputs = len(bias), x.shape[1]
    codes = torch.randint(1 << bits, (outputs, inputs), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    zeros, scales = codes[:, :1].short(), random(outputs, 1, seed=4)
    order = torch.arange(inputs).flip(0)
    matrix = QuantizedMatrix(codes, scales, zeros, inputs, bits, order=order)
    weight = ((codes.short() - zeros) * scales)[:, order]
    packed, form = grouped_weights.pack(matrix), grouped_weights.format_of(matrix)
    return _product(kernels, x, packed, bias, weight, _QUANTIZED_TOLERANCE, form=form)


def _float8_product(kernels: ctypes.CDLL, x: torch.Tensor, bias: torch.Tensor) -> bool:
    """The same with weights in E4M3."""
    numbers, scales = random(len(bias), x.shape[1], seed=3).to(torch.float8_e4m3fn), random(len(bias), 2, seed=4)
    group = x.shape[1] // 2
    codes, zeros = numbers.view(torch.uint8), torch.zeros_like(scales, dtype=torch.int16)
    matrix = QuantizedMatrix(codes, scales, zeros, group, bits=8, is_float8=True)
    weight = numbers.float() * scales.repeat_interleave(group, dim=1)
    packed, form = grouped_weights.pack(matrix), grouped_weights.format_of(matrix)
    return _product(kernels, x, packed, bias, weight, form=form)


def _gguf_product(kernels: ctypes.CDLL, bias: torch.Tensor) -> bool:
    """The same with weights in Q6_K, of one superblock."""
    rows = torch.randint(256, (len(bias), 210), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    rows[:, 208:] = torch.tensor([0, 0x1C])  # 2^-8, in half precision
    scales, codes = rows[:, 192:208].view(torch.int8) / 256, blocks("Q6_K", rows).codes
    weight = (codes.short() - 32) * scales.repeat_interleave(16, dim=1)
    packed = gguf_weights.pack([("Q6_K", rows)])
    x = random(_ROWS, weight.shape[1], seed=5)
    return _product(kernels, x, packed, bias, weight, _QUANTIZED_TOLERANCE, form=gguf_weights.FORMAT)


def _rounded_product(
    kernels: ctypes.CDLL, x: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor, kind: str
) -> bool:
    """The same with weights rounded to 8 and to 4 bits."""
    packed, dequantized = gguf_weights.pack([(kind, weight)], quantization.rounded), quantization.numbers(kind, weight)
    return _product(kernels, x, packed, bias, dequantized, _QUANTIZED_TOLERANCE, form=gguf_weights.FORMAT)


def _product(
    kernels: ctypes.CDLL,
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor,
    weight: torch.Tensor,
    tolerance: float = TOLERANCE,
    *,
    rounds_inputs: bool = False,
    form: int | None = None,
) -> bool:
    """True if x times the packed weights is x times ``weight``, the matrix that they stand for.

    The first row must have the same bits in every batch: few rows may be computed by other instructions than many.
    """
    expected = F.linear(x, weight, bias)
    form = format_of(packed, rounds_inputs=rounds_inputs) if form is None else form
    found = [_multiply(kernels, x[:count], packed, bias, form) for count in (1, 9, len(x))]
    return all(close(rows, expected[: len(rows)], tolerance) and torch.equal(rows[:1], found[0]) for rows in found)


def _multiply(
    kernels: ctypes.CDLL, x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, form: int
) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty(len(x), len(bias))
    addresses = (x.data_ptr(), packed.data_ptr(), form, bias.data_ptr(), out.data_ptr())
    kernels.mm_linear(*addresses, *x.shape, len(bias), 0)
    return out
