"""Whether a GPU multiplies in FP8 as float64 does. Asked at start; nothing is used that was not tried."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch

from mmserve.config.resolved.gpu_capability import ADA, HOPPER, in_words
from mmserve.model_backend.layers.ops import Addend
from mmserve.model_backend.platforms.cuda.attention.choice import Gpu
from mmserve.model_backend.platforms.cuda.attention.metadata import Partials
from mmserve.model_backend.platforms.cuda.attention.record import StepRecord
from mmserve.model_backend.platforms.cuda.attention.unmerged import Unmerged
from mmserve.model_backend.platforms.cuda.fp8 import launches
from mmserve.model_backend.platforms.cuda.fp8.forms import BY_ROWS, Form
from mmserve.model_backend.platforms.cuda.fp8.products import scales_of_weights
from mmserve.model_backend.platforms.cuda.fp8.rows import FP8, GROUP, Rows, quantized, widened
from mmserve.model_backend.platforms.cuda.row_ops import GATES
from mmserve.model_backend.platforms.cuda.trying import KERNEL_ERRORS, in_short
from mmserve.model_backend.platforms.torch_ops import TorchOps
from mmserve.runtime.errors import StartupError

_TOLERANCE = 0.05
"""Of a product's relative error: three bits of mantissa on both sides."""
_ROWS, _INPUTS, _OUTPUTS = 33, 3 * GROUP, 2 * GROUP
_EPS = 1e-6

logger = logging.getLogger(__name__)


@lru_cache
def problem_with_fp8(device: torch.device, dtype: torch.dtype, form: Form) -> str:
    """Why this GPU does not compute what torch does in float64, with random numbers; empty if it does.

    ``dtype``: of the result. Not every GPU has all.
    """
    try:
        for what, found, exact in (*_roundings(device, dtype, form), *_products(device, dtype, form)):
            error_part = float((found[:_ROWS].cpu().double() - exact).norm() / exact.norm())
            if not error_part < _TOLERANCE:
                return f"computes wrong {what} on this GPU (relative error {error_part:.2g})"
    except KERNEL_ERRORS as error:
        return f"does not work on this GPU ({in_short(error)})"
    return ""


Trials = Iterator[tuple[str, torch.Tensor, torch.Tensor]]
"""What was computed, the result, and that in float64."""


def _products(device: torch.device, dtype: torch.dtype, form: Form) -> Trials:
    x, weight = (_random(rows, _INPUTS) for rows in (_ROWS, _OUTPUTS))
    bias = _random(_OUTPUTS).to(dtype)
    exact = x.double() @ weight.double().T + bias.double()
    for scales in _scales(weight, form):
        numbers = (weight / scales.repeat_interleave(_INPUTS // scales.shape[1], dim=1)).to(FP8)
        laid_out = scales if form.group is None else scales_of_weights(scales)
        rows = form.quantized(x.to(device, dtype))
        yield (
            "products",
            form.product(rows, Rows(numbers.to(device), laid_out.to(device)), bias.to(device), dtype),
            exact,
        )


def _roundings(device: torch.device, dtype: torch.dtype, form: Form) -> Trials:
    """Norms with what is added before them, attention, and gates."""
    hidden, x = (_random(_ROWS, _INPUTS, seed=seed).to(dtype) for seed in (1, 2))
    weight = _random(_INPUTS).to(dtype)
    for norm_weight in (None, weight):
        own, exact = hidden.to(device, copy=True), hidden.double()
        addend = Addend(x.to(device), None if norm_weight is None else norm_weight.to(device))
        found = launches.normed(own, weight.to(device), _EPS, addend, form.group)
        weights = None if norm_weight is None else norm_weight.double()
        normed = TorchOps().add_normed_(exact, x.double(), weights, weight.double(), _EPS)
        yield "norms", widened(found, _ROWS), normed
        yield "sums", own, exact
    exact = _unmerged(device, dtype).merged().flatten(1).cpu().double()
    yield "sums of attention", widened(launches.attended(_unmerged(device, dtype), form.group), _ROWS), exact
    for name in ("silu", "gelu_pytorch_tanh"):
        both = torch.cat((hidden, x), dim=1)
        found = launches.gated(both.to(device), GATES[name], form.group)
        yield "gates", widened(found, _ROWS), TorchOps().act_and_mul(name)(both.double())


def _unmerged(device: torch.device, dtype: torch.dtype) -> Unmerged:
    """Rows of three heads, some of them with two results to be added up."""
    merged = range(0, _ROWS, 8)
    merges = np.array([[row, 2 * index, 2] for index, row in enumerate(merged)], dtype=np.int32)
    others = np.setdiff1d(np.arange(_ROWS, dtype=np.int32), merged)
    partials = Partials(3, GROUP, _ROWS, device)
    partials.reserve(2 * len(merges))
    partials.totals.copy_(_random(*partials.totals.shape))
    partials.weights.copy_(_random(*partials.weights.shape).abs() + 0.5)
    record = StepRecord(device, 8 * _ROWS).write([merges, others])
    return Unmerged(_random(_ROWS, 3, GROUP).to(device, dtype), partials, record, merges=0, num_programs=4)


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def _scales(weight: torch.Tensor, form: Form) -> list[torch.Tensor]:
    """[outputs, groups]: in each layout of weights that the form has."""
    if form.group is None:
        return [quantized(weight).scales]
    of_outputs = quantized(weight, form.group).scales
    of_blocks = of_outputs.reshape(-1, GROUP, of_outputs.shape[1]).amax(1).repeat_interleave(GROUP, dim=0)
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
