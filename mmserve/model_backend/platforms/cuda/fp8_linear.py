"""Products in FP8 (e4m3) on a GPU: a scale for each output of the weights, and one for each row of activations.

Weights are made of any (``--quantization fp8``) or as a checkpoint stores them. ``torch._scaled_mm`` multiplies;
``exact_product`` is its reference.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Protocol

import torch
import triton

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.quantized.stored import StoredTensors, stored_tensors
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu
from mmserve.model_backend.platforms.cuda.kernels.quantize_rows import quantize_rows
from mmserve.model_backend.platforms.reference import PlainLinear
from mmserve.runtime.errors import StartupError, shortened

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max
_LEAST_SCALE = 1e-12
_STEP = 16
"""Both sizes of a matrix must be multiples of it."""
_LONGEST_ROW = 1 << 15
_TOLERANCE = 0.05
"""Of a product's relative error: three bits of mantissa on both sides."""

Rows = tuple[torch.Tensor, torch.Tensor]
"""FP8 numbers [rows, size] and the scale of each row, float32 [rows, 1]."""
Product = Callable[[Rows, Rows, torch.dtype], torch.Tensor]
"""(activations, weights, dtype of the result) -> [rows of activations, rows of weights]."""
logger = logging.getLogger(__name__)


def scaled_product(x: Rows, weight: Rows, dtype: torch.dtype) -> torch.Tensor:
    """By the GPU's FP8 units."""
    return torch._scaled_mm(x[0], weight[0].T, scale_a=x[1], scale_b=weight[1].T, out_dtype=dtype, use_fast_accum=True)


def exact_product(x: Rows, weight: Rows, dtype: torch.dtype) -> torch.Tensor:
    """In float32, on any device."""
    return ((x[0].float() @ weight[0].float().T) * x[1] * weight[1].T).to(dtype)


def quantized(x: torch.Tensor) -> Rows:
    """By torch, on any device."""
    numbers = x.float()
    scales = numbers.abs().amax(dim=1, keepdim=True).clamp_(min=_LEAST_SCALE) / LARGEST
    return (numbers / scales).clamp_(-LARGEST, LARGEST).to(FP8), scales


def quantized_in_one_launch(x: torch.Tensor) -> Rows:
    """By a Triton kernel. Rows may have any stride."""
    rows, size = x.shape
    out = torch.empty(rows, size, dtype=FP8, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    if rows:
        with current_gpu(x):
            quantize_rows[(rows,)](
                *(x, out, scales, x.stride(0)),
                SIZE=size,
                PADDED=triton.next_power_of_2(size),
                LARGEST=LARGEST,
                num_warps=min(16, max(1, triton.next_power_of_2(size) // 512)),
            )
    return out, scales


def sizes_fit(shape: LinearShape) -> bool:
    return shape.out_size % _STEP == 0 and shape.in_size % _STEP == 0 and shape.in_size <= _LONGEST_ROW


def may_take(scheme: QuantizationScheme, shape: LinearShape) -> bool:
    """True for a checkpoint's FP8 weights with one scale an output or a matrix, made for inputs in FP8."""
    return scheme.layout == "fp8" and scheme.float8_inputs and scheme.block is None and sizes_fit(shape)


class Source(Protocol):
    """A layer's weights while they are loaded: in host memory, so that the GPU never holds the whole model twice."""

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]: ...

    def rows(self, device: torch.device) -> Rows:
        """What was loaded, on the device."""
        ...


class PlainSource:
    """See ``Source``: of an unquantized checkpoint."""

    def __init__(self, shape: LinearShape, dtype: torch.dtype) -> None:
        self._loaded = PlainLinear(shape, dtype, torch.device("cpu"))

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        return self._loaded.targets(shard)

    def rows(self, device: torch.device) -> Rows:
        return quantized(self._loaded.weight.to(device))


class StoredSource:
    """See ``Source``: FP8 numbers of a checkpoint, as they are. One scale a matrix is repeated for its outputs."""

    def __init__(self, scheme: QuantizationScheme, shape: LinearShape) -> None:
        self._stored: StoredTensors = stored_tensors(scheme, shape)

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        return self._stored.targets(shard)

    def rows(self, device: torch.device) -> Rows:
        matrix = self._stored.matrix()
        assert matrix.is_float8
        assert matrix.scales.shape == (len(matrix.codes), 1), "one scale an output"
        scales = matrix.scales.to(device, torch.float32).contiguous()
        return matrix.codes.to(device).contiguous().view(FP8), scales


class Fp8Linear:
    """See ``layers.linear_method.LinearMethod``."""

    def __init__(
        self,
        source: Source,
        dtype: torch.dtype,
        device: torch.device,
        product: Product = scaled_product,
        quantize: Callable[[torch.Tensor], Rows] = quantized_in_one_launch,
    ) -> None:
        self._dtype, self._device, self._product, self._quantize = dtype, device, product, quantize
        self._source: Source | None = source
        self._weight: Rows | None = None

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        assert self._source is not None, "it has been converted"
        return self._source.targets(shard)

    def finish_loading(self) -> None:
        assert self._source is not None, "it has been converted"
        self._weight = self._source.rows(self._device)
        self._source = None

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        assert self._weight is not None, "its weights are not loaded"
        out = self._product(self._quantize(x.reshape(-1, x.shape[-1])), self._weight, self._dtype)
        if bias is not None:
            out.add_(bias)
        out = out.view(*x.shape[:-1], out.shape[1])
        return out if residual is None else residual.add_(out)


@lru_cache
def problem_with_fp8(device: torch.device, dtype: torch.dtype) -> str:
    """Why this GPU does not compute what torch does in float64, with a random matrix; empty if it does.

    ``dtype``: of the result. Not every GPU has all.
    """
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 256, generator=generator) for rows in (33, 64))
    try:
        found = scaled_product(quantized_in_one_launch(x.to(device, dtype)), quantized(weight.to(device)), dtype)
    except (RuntimeError, ValueError, OSError, triton.TritonError) as error:  # torch's own checks raise ValueError
        return f"does not work on this GPU ({shortened(' '.join(str(error).split()), 200)})"
    exact = x.double() @ weight.double().T
    if not (error_part := float((found.cpu().double() - exact).norm() / exact.norm())) < _TOLERANCE:
        return f"computes wrong products on this GPU (relative error {error_part:.2g})"
    return ""


def check_fp8(device: torch.device, dtype: torch.dtype) -> None:
    """Raises StartupError if there is a problem."""
    if problem := problem_with_fp8(device, dtype):
        raise StartupError(f"--quantization fp8 {problem}; leave it out")


@lru_cache
def works_for_checkpoints(device: torch.device, dtype: torch.dtype) -> bool:
    """Says once why not."""
    if problem := problem_with_fp8(device, dtype):
        logger.warning(
            "products with the FP8 checkpoint widen its weights, which is slower: torch._scaled_mm %s", problem
        )
    return not problem
