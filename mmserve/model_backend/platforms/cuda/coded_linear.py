"""Layers that the checkpoint stores quantized (AWQ, GPTQ, compressed-tensors, FP8), on a GPU. They stay in their bits.

Activations are not rounded, also where the checkpoint would round them: that is more exact than its own arithmetic.
Checkpoints in FP8 come here where ``fp8`` does not take them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
import triton

from mmserve.checkpoint.quantization.scheme import QuantizationScheme
from mmserve.model_backend.layers.linear_method import LinearShape
from mmserve.model_backend.layers.quantized.matrix import QuantizedMatrix
from mmserve.model_backend.layers.quantized.stored import StoredTensors, stored_tensors
from mmserve.model_backend.layers.target import LinearShard, Target
from mmserve.model_backend.platforms.cuda.attention.launch import current_gpu
from mmserve.model_backend.platforms.cuda.kernels.coded_product import coded_product
from mmserve.model_backend.platforms.cuda.trying import KERNEL_ERRORS, in_short
from mmserve.runtime.errors import StartupError

_BLOCKS = (128, 64, 32)
"""Inputs that are taken together, all of one group."""
_LEAST_ROWS, _MOST_ROWS, _COLUMNS = 16, 64, 64
"""Of a program."""
_TOLERANCE = 0.01
"""Of a product's relative error."""


class CodedWeights(NamedTuple):
    """As the kernel reads them, see ``kernels.coded_product``."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    order: torch.Tensor | None
    group: int
    half: int
    inputs: int

    @classmethod
    def of(cls, matrix: QuantizedMatrix, device: torch.device, names: str) -> CodedWeights:
        """Raises StartupError if no block of inputs lies in one group. ``names``: of the layer's matrices."""
        outputs, inputs = matrix.codes.shape
        group = min(matrix.group_size, inputs)
        block = next((size for size in _BLOCKS if group % size == 0 and inputs % size == 0), None)
        if block is None:
            raise StartupError(f"{names}: groups of {group} of {inputs} inputs are not supported on a GPU; use a CPU")
        codes = matrix.codes.to(device)
        if matrix.is_float8:
            codes = codes.contiguous().view(torch.float8_e4m3fn)
        elif matrix.bits == 4:
            first, second = codes.reshape(outputs, inputs // block, 2, block // 2).unbind(2)
            codes = (first | second << 4).flatten(1)
        return cls(
            codes.contiguous(),
            matrix.scales.to(device, torch.float32).contiguous(),
            matrix.zeros.to(device, torch.float32).contiguous(),
            None if matrix.order is None else matrix.order.to(device),
            group,
            block // 2,
            inputs,
        )

    def product(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, in] -> [rows, out], in the dtype of ``x``, whose rows may have any stride."""
        x = x if self.order is None else x.index_select(1, self.order)
        (rows, _), outputs = x.shape, len(self.codes)
        out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
        if not rows:
            return out
        tile = min(_MOST_ROWS, max(_LEAST_ROWS, triton.next_power_of_2(rows)))
        with current_gpu(x):
            coded_product[(triton.cdiv(outputs, _COLUMNS), triton.cdiv(rows, tile))](
                *(x, self.codes, self.scales, self.zeros, out, rows, x.stride(0)),
                IN=self.inputs,
                OUT=outputs,
                GROUPS=self.scales.shape[1],
                GROUP=self.group,
                HALF=self.half,
                PACKED=self.codes.shape[1] < self.inputs,
                ROWS=tile,
                COLUMNS=_COLUMNS,
                UPCAST=bool(triton.knobs.runtime.interpret) or x.dtype is torch.float32,
                STAGES=3,
            )
        return out


class CodedLinear:
    """See ``layers.linear_method.LinearMethod``. The stored tensors are in host memory until they are converted."""

    adds_residual = False

    def __init__(self, scheme: QuantizationScheme, shape: LinearShape, device: torch.device) -> None:
        self._names, self._device = ", ".join(shape.names), device
        self._stored: StoredTensors | None = stored_tensors(scheme, shape)
        self._weights: CodedWeights | None = None

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        assert self._stored is not None, "it has been converted"
        return self._stored.targets(shard)

    def finish_loading(self) -> None:
        assert self._stored is not None, "it has been converted"
        self._weights = CodedWeights.of(self._stored.matrix(), self._device, self._names)
        self._stored = None

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        assert self._weights is not None, "its weights are not loaded"
        out = self._weights.product(x.reshape(-1, x.shape[-1]))
        if bias is not None:
            out.add_(bias)
        out = out.view(*x.shape[:-1], out.shape[1])
        return out if residual is None else residual.add_(out)


@lru_cache
def check_coded(device: torch.device, dtype: torch.dtype, *, float8: bool) -> None:
    """Raises StartupError if this GPU does not compute what float64 gives, with random codes.

    ``float8``: they are FP8 numbers, which GPUs before 8.9 do not read; else whole numbers.
    """
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(16, (96, 128), generator=generator, dtype=torch.uint8)
    zeros = torch.randint(16, (96, 4), generator=generator, dtype=torch.int16)
    scales, x = torch.rand(96, 4, generator=generator), torch.randn(5, 128, generator=generator).to(dtype)
    numbers = codes.float()
    if float8:
        codes, zeros = numbers.to(torch.float8_e4m3fn).view(torch.uint8), torch.zeros_like(zeros)
    weight = ((numbers.view(96, 4, 32) - zeros[..., None]) * scales[..., None].double()).flatten(1)
    try:
        matrix = QuantizedMatrix(codes, scales, zeros, 32, 8 if float8 else 4, is_float8=float8)
        found = CodedWeights.of(matrix, device, "a test").product(x.to(device)).cpu().double()
    except KERNEL_ERRORS as error:
        raise StartupError(
            f"this GPU cannot compute a quantised checkpoint ({in_short(error)}): use --device cpu"
        ) from error
    exact = x.double() @ weight.T
    if not (wrong := float((found - exact).norm() / exact.norm())) < _TOLERANCE:
        raise StartupError(
            f"products with a quantised checkpoint are wrong on this GPU (relative error {wrong:.2g}): use --device cpu"
        )
