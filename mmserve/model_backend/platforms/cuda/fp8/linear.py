"""Linear layers in FP8: weights are made of any (``--quantization fp8``) or as a checkpoint stores them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.quantized.stored import StoredTensors, stored_tensors
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.model_backend.platforms.cuda.fp8.forms import BY_BLOCKS, BY_ROWS, Form
from mmserve.model_backend.platforms.cuda.fp8.products import scales_of_weights
from mmserve.model_backend.platforms.cuda.fp8.rows import FP8, GROUP, Rows, quantized
from mmserve.model_backend.platforms.reference import PlainLinear

_STEP = 16
"""Both sizes of a matrix must be multiples of it."""
_LONGEST_ROW = 1 << 15


def sizes_fit(shape: LinearShape) -> bool:
    return shape.out_size % _STEP == 0 and shape.in_size % _STEP == 0 and shape.in_size <= _LONGEST_ROW


def form_of(scheme: QuantizationScheme, shape: LinearShape) -> Form | None:
    """Of a checkpoint's FP8 weights that were made for inputs in FP8; None: no FP8 units can multiply with them."""
    if scheme.layout != "fp8" or not scheme.float8_inputs or not sizes_fit(shape):
        return None
    if scheme.block is None:
        return BY_ROWS
    return BY_BLOCKS if scheme.block == (GROUP, GROUP) and shape.in_size % GROUP == 0 else None


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
        scales = matrix.scales.float()
        scales = scales.contiguous() if scales.shape[1] == 1 else scales_of_weights(scales)
        return Rows(matrix.codes.to(device).contiguous().view(FP8), scales.to(device))


class Fp8Linear:
    """See ``layers.linear_method.LinearMethod``."""

    adds_residual = False

    def __init__(self, source: Source, form: Form, dtype: torch.dtype, device: torch.device) -> None:
        self.form, self._dtype, self._device = form, dtype, device
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
        flat = x.reshape(-1, x.shape[-1])
        out = self.product(self.form.quantized(flat), len(flat), bias)
        out = out.view(*x.shape[:-1], out.shape[1])
        return out if residual is None else residual.add_(out)

    def product(self, x: Rows, count: int, bias: torch.Tensor | None) -> torch.Tensor:
        """[count, out], of the first ``count`` rows."""
        assert self._weight is not None, "its weights are not loaded"
        return self.form.product(x, self._weight, bias, self._dtype)[:count]
