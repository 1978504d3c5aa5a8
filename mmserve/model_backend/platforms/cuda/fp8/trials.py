"""Whether a GPU multiplies in FP8 as float64 does. Asked at start; nothing is used that was not tried."""

from __future__ import annotations

import logging
from functools import lru_cache

import torch
import triton

from mmserve.config.resolved.gpu_capability import ADA, HOPPER, in_words
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu
from mmserve.model_backend.platforms.cuda.fp8.forms import BY_ROWS, Form
from mmserve.model_backend.platforms.cuda.fp8.products import scales_of_weights
from mmserve.model_backend.platforms.cuda.fp8.rows import FP8, GROUP, Rows, quantized
from mmserve.runtime.errors import StartupError, shortened

_TOLERANCE = 0.05
"""Of a product's relative error: three bits of mantissa on both sides."""
_ROWS, _INPUTS, _OUTPUTS = 33, 3 * GROUP, 2 * GROUP

logger = logging.getLogger(__name__)


@lru_cache
def problem_with_fp8(device: torch.device, dtype: torch.dtype, form: Form) -> str:
    """Why this GPU does not compute what torch does in float64, with random matrices; empty if it does.

    ``dtype``: of the result. Not every GPU has all.
    """
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, _INPUTS, generator=generator) for rows in (_ROWS, _OUTPUTS))
    bias = torch.randn(_OUTPUTS, generator=generator).to(dtype)
    for scales in _scales(weight, form):
        numbers = (weight / scales.repeat_interleave(_INPUTS // scales.shape[1], dim=1)).to(FP8)
        try:
            laid_out = scales if form.group is None else scales_of_weights(scales)
            found = form.product(
                form.quantized(x.to(device, dtype)),
                Rows(numbers.to(device), laid_out.to(device)),
                bias.to(device),
                dtype,
            )
        except (AttributeError, RuntimeError, ValueError, OSError, triton.TritonError) as error:
            # Torch's own checks raise ValueError, an older one lacks the function.
            return f"does not work on this GPU ({shortened(' '.join(str(error).split()), 200)})"
        exact = x.double() @ weight.double().T + bias.double()
        if not (error_part := float((found[:_ROWS].cpu().double() - exact).norm() / exact.norm())) < _TOLERANCE:
            return f"computes wrong products on this GPU (relative error {error_part:.2g})"
    return ""


def _scales(weight: torch.Tensor, form: Form) -> list[torch.Tensor]:
    """[outputs, groups]: in each layout of weights that the form has."""
    if form.group is None:
        return [quantized(weight).scales]
    of_outputs = quantized(weight, form.group).scales
    of_blocks = of_outputs.unflatten(0, (-1, GROUP)).amax(1).repeat_interleave(GROUP, dim=0)
    return [of_blocks, of_outputs]


def check_fp8(device: torch.device, dtype: torch.dtype) -> None:
    """Raises StartupError if there is a problem."""
    if problem := problem_with_fp8(device, dtype, BY_ROWS):
        raise StartupError(f"--quantization fp8 {problem}; leave it out")


@lru_cache
def works_for_checkpoints(gpu: Gpu, dtype: torch.dtype, form: Form) -> bool:
    """Says once why not. float32 asks for exact products."""
    if dtype is torch.float32 or gpu.capability < ADA:
        return False
    if form.group is not None and gpu.capability[0] != HOPPER[0]:
        hopper, own = in_words(HOPPER), in_words(gpu.capability)
        problem = f"has blocks on compute capability {hopper} alone, and this GPU's is {own}"
    else:
        problem = problem_with_fp8(gpu.device, dtype, form)
    if problem:
        logger.warning(
            "products with the FP8 checkpoint widen its weights, which is slower: torch's scaled product %s", problem
        )
    return not problem
