"""Compares the C++ kernels with torch once, before they are used."""

from __future__ import annotations

import ctypes
import logging
from functools import cache

import torch
import torch.nn.functional as F

from mmserve.model_backend.platforms.cpu import build, quantization
from mmserve.model_backend.platforms.cpu.packed_weights import format_of, pack

_TOLERANCE = 1e-5
_QUANTIZED_TOLERANCE = 1e-4
"""Relative to the largest result; for quantized weights, whose inputs are rounded to 16-bit integers."""
logger = logging.getLogger(__name__)


@cache
def verified_kernels() -> ctypes.CDLL | None:
    """The kernels, if they can be built here and compute what torch computes."""
    kernels = build.loaded()
    if kernels is None or _passes(kernels):
        return kernels
    logger.warning("the C++ kernels compute wrong numbers on this machine: torch computes alone (slower)")
    return None


def _passes(kernels: ctypes.CDLL) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight, x, bias = (torch.randn(*shape, generator=generator) for shape in ((80, 64), (20, 64), (80,)))
    float32, int8 = weight[:, :40].contiguous(), quantization.to_int8(weight)
    bfloat16, dequantized = float32.bfloat16().float(), quantization.int8_rows(int8, torch.arange(len(weight)))
    return (
        _linear_is_right(kernels, x[:, :40], pack(float32), bias, float32)
        and _linear_is_right(kernels, x[:, :40], pack(bfloat16), bias, bfloat16)
        and _linear_is_right(kernels, x, int8, bias, dequantized, _QUANTIZED_TOLERANCE)
    )


def _linear_is_right(
    kernels: ctypes.CDLL,
    x: torch.Tensor,
    packed: torch.Tensor,
    bias: torch.Tensor,
    weight: torch.Tensor,
    tolerance: float = _TOLERANCE,
) -> bool:
    """True if x times the packed weights is x times ``weight``, the matrix that they stand for."""
    expected = F.linear(x, weight, bias)
    for count in (1, 9, len(x)):
        rows, out = x[:count].contiguous(), torch.empty(count, len(bias))
        arguments = (rows.data_ptr(), packed.data_ptr(), format_of(packed), bias.data_ptr(), out.data_ptr())
        kernels.mm_linear(*arguments, *rows.shape, len(bias), 0)
        if not torch.allclose(out, expected[:count], rtol=tolerance, atol=tolerance * float(expected.abs().max())):
            return False
    return True
