"""Weights packed once for faster products on a CPU.

In float32 for the C++ kernels, where there are any: panels [out / 16, in, 16], as bfloat16 when that loses nothing,
so that a step reads half the memory. Else for oneDNN, a third faster than torch's own product. The packed operators
are private names of torch, so each dtype must pass a numeric self-test first; where they are missing, refuse the
dtype or fail the test, weights stay as they are.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

from mmserve.config.config import Quantization
from mmserve.model_backend.platforms.cpu import kernels
from mmserve.model_backend.platforms.cpu import quantization as quantized
from mmserve.runtime.errors import StartupError

_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Relative to the largest value of the result."""


def multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    onto: torch.Tensor | None = None,
) -> torch.Tensor:
    """[..., in] x (packed or plain) [out, in] -> [..., out]; added to ``onto`` in place when that is given."""
    if weight.dim() == 3:
        return kernels.linear(x, weight, bias, onto)
    if weight.is_mkldnn:
        out = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    else:
        out = F.linear(x, weight, bias)
    return out if onto is None else onto.add_(out)


def rows_of(weight: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """int64 [T] -> those rows [T, in] of a plain [out, in], or of panels (int4 excepted) as float32."""
    if weight.dim() == 3:
        return kernels.rows_of(weight, indices)
    return F.embedding(indices, weight)


def to_panels(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] in panels where the C++ kernels take it, else as it came."""
    if kernels.usable(weight) and weight.shape[0] % kernels.PANEL == 0:
        return kernels.to_panels(weight)
    return weight


def pack(weight: torch.Tensor) -> torch.Tensor:
    """[out, in], packed for ``multiply`` where this CPU can, else as it came."""
    panels = to_panels(weight)
    if panels is weight and weight.device.type == "cpu" and _works(weight.dtype):
        return torch.ops.mkldnn._reorder_linear_weight(weight)  # type: ignore[no-any-return]
    return panels


def quantize(weight: torch.Tensor, form: Quantization) -> torch.Tensor:
    """[out, in] -> int8 or int4 for ``multiply``. Raises StartupError where the kernels are missing."""
    if not kernels.usable(weight):
        raise StartupError("--quantization needs a C++ compiler on this machine (c++ or g++): install one")
    if weight.shape[0] % kernels.PANEL or weight.shape[1] % quantized.GROUP:
        raise StartupError(
            f"--quantization needs layers of a multiple of {kernels.PANEL} outputs and {quantized.GROUP} inputs "
            f"on each rank, not {weight.shape[0]} and {weight.shape[1]}: leave it out"
        )
    return quantized.to_int8(weight) if form == "int8" else quantized.to_int4(weight)


@cache
def _works(dtype: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    weight, x, bias = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((48, 64), (5, 64), (48,)))
    expected = F.linear(x, weight, bias).float()
    try:
        found = multiply(x, torch.ops.mkldnn._reorder_linear_weight(weight), bias).float()
    except (RuntimeError, AttributeError):
        return False
    return bool((found - expected).abs().max() <= _TOLERANCE.get(dtype, 0.0) * expected.abs().max())
