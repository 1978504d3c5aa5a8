"""Linear methods of a CPU. Each loads plain weights and converts them once, in ``finish_loading``.

``KernelLinear`` is for the C++ kernels; ``RoundedKernelLinear`` rounds to bfloat16, ``Int8Linear`` and ``Int4Linear``
quantize for them. ``OneDnnLinear`` is for float16 and where there are no kernels: a third faster than torch's own
product. OneDNN's packed operators are private names of torch, so each dtype must pass a numeric self-test first
(``onednn_works``). ``RoundedInputs`` computes with torch what ``RoundedKernelLinear`` computes, with rounded results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from functools import cache

import torch
import torch.nn.functional as F

from mmserve.model_backend.layers.linear_method import EmbeddingMethod, LinearShape
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.model_backend.platforms.cpu.linear import gguf_weights, quantization
from mmserve.model_backend.platforms.cpu.linear.packed_weights import format_of, pack, pack_short, rounded_format
from mmserve.model_backend.platforms.reference import PlainLinear
from mmserve.runtime.errors import StartupError

_CPU = torch.device("cpu")
_ONEDNN_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Relative to the largest value of the result."""


class PackedLinear:
    """Weights in a layout of the C++ kernels; float32 inputs and results.

    A row's result does not depend on the other rows.
    """

    adds_residual = True
    packed: torch.Tensor
    format: int
    """The kernels' number for a product with them."""

    def __init__(self, kernels: ctypes.CDLL, shape: LinearShape) -> None:
        self._kernels = kernels
        self.out_size, self.in_size = shape.out_size, shape.in_size

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        x = x.contiguous()
        out = torch.empty(*x.shape[:-1], self.out_size) if residual is None else residual
        self._kernels.mm_linear(
            x.data_ptr(),
            self.packed.data_ptr(),
            self.format,
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            x.numel() // self.in_size,
            self.in_size,
            self.out_size,
            residual is not None,
        )
        return out


class KernelLinear(PackedLinear, PlainLinear):
    """Weights in panels (``packed_weights``)."""

    _rounds = False
    """Both weights and inputs, to bfloat16."""

    def __init__(self, kernels: ctypes.CDLL, shape: LinearShape) -> None:
        PackedLinear.__init__(self, kernels, shape)
        PlainLinear.__init__(self, shape, torch.bfloat16 if self._rounds else torch.float32, _CPU)

    def finish_loading(self) -> None:
        self.packed = self._pack(self.weight)
        self.format = self._format()
        free(self.weight)
        del self.weight

    def _pack(self, weight: torch.Tensor) -> torch.Tensor:
        return pack(weight)

    def _format(self) -> int:
        return rounded_format(self._kernels) if self._rounds else format_of(self.packed)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """float32."""
        indices = indices.contiguous()
        out = torch.empty(len(indices), self.in_size)
        self._kernels.mm_rows(self.packed.data_ptr(), self.format, indices.data_ptr(), out.data_ptr(), *out.shape)
        return out


class RoundedKernelLinear(KernelLinear):
    """Weights and inputs rounded to bfloat16, sums in float32: faster where the CPU multiplies bfloat16."""

    _rounds = True

    def _pack(self, weight: torch.Tensor) -> torch.Tensor:
        return pack_short(weight)


class Int8Linear(KernelLinear):
    """Weights rounded to 8 bits in groups of 32 inputs; see ``quantization``."""

    _kind = quantization.INT8

    def __init__(self, kernels: ctypes.CDLL, shape: LinearShape) -> None:
        _check_quantizable(shape)
        super().__init__(kernels, shape)

    def _pack(self, weight: torch.Tensor) -> torch.Tensor:
        return gguf_weights.pack([(self._kind, weight)], quantization.rounded)

    def _format(self) -> int:
        return gguf_weights.FORMAT


class Int4Linear(Int8Linear):
    """Weights rounded to 4 bits in groups of 32 inputs; see ``quantization``."""

    _kind = quantization.INT4


def free(weight: torch.Tensor) -> None:
    """Its memory, although views of it exist: the targets of the tensors that were loaded into it."""
    weight.untyped_storage().resize_(0)


def _check_quantizable(shape: LinearShape) -> None:
    panel, group = quantization.PANEL, quantization.GROUP
    if shape.out_size % panel or shape.in_size % group:
        raise StartupError(
            f"--quantization needs layers of a multiple of {panel} outputs and {group} inputs "
            f"on each rank, not {shape.out_size} and {shape.in_size}: leave it out"
        )


class OneDnnLinear(PlainLinear):
    """Weights reordered by oneDNN."""

    def finish_loading(self) -> None:
        plain, self.weight = self.weight, torch.ops.mkldnn._reorder_linear_weight(self.weight)
        free(plain)

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, bias, "none", [], "")
        return out if residual is None else residual.add_(out)


class RoundedInputs:
    """A method in bfloat16 for float32 inputs: rounds them and widens results. See ``EmbeddingMethod``."""

    adds_residual = True

    def __init__(self, method: EmbeddingMethod) -> None:
        self._method = method

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        return self._method.targets(shard)

    def finish_loading(self) -> None:
        self._method.finish_loading()

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        out = self._method.apply(x.bfloat16()).float()
        if bias is not None:
            out += bias
        return out if residual is None else residual.add_(out)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self._method.rows(indices).float()


@cache
def onednn_works(dtype: torch.dtype) -> bool:
    """True if torch has oneDNN's packed operators, and they compute what torch computes in this dtype."""
    generator = torch.Generator().manual_seed(0)
    weight, x, bias = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((48, 64), (5, 64), (48,)))
    expected = F.linear(x, weight, bias).float()
    method = OneDnnLinear(LinearShape.full(*weight.shape), dtype, _CPU)
    method.weight.copy_(weight)
    try:
        method.finish_loading()
        found = method.apply(x, bias).float()
    except (RuntimeError, AttributeError):
        return False
    return bool((found - expected).abs().max() <= _ONEDNN_TOLERANCE.get(dtype, 0.0) * expected.abs().max())
