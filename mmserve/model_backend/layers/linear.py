"""Linear layers whose outputs (column parallel) or inputs (row parallel) are split over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from mmserve.config.config import Quantization
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.packed_linear import multiply, pack, quantize, to_panels
from mmserve.model_backend.loader.weights import Target


def empty(*shape: int, like: torch.Tensor) -> nn.Parameter:
    """An uninitialised parameter with the dtype and device of ``like``."""
    return nn.Parameter(torch.empty(*shape, dtype=like.dtype, device=like.device), requires_grad=False)


@runtime_checkable
class Packable(Protocol):
    """A layer whose weight may change its layout once it is loaded."""

    def pack(self, quantization: Quantization) -> None: ...


@torch.inference_mode()
def pack_linears(model: nn.Module, quantization: Quantization = "none") -> None:
    """Bring the loaded weights of all layers into the layout that is fastest to multiply with, or quantize them."""
    for module in model.modules():
        if isinstance(module, Packable):
            module.pack(quantization)


def pack_weight(layer: nn.Module, quantization: Quantization, *, look_up: bool = False) -> None:
    """Replace ``layer.weight``. ``look_up``: its rows are still needed, which int4 would cost too much."""
    assert isinstance(layer.weight, nn.Parameter)
    weight = layer.weight.data
    if quantization != "none":
        packed = quantize(weight, "int8" if look_up else quantization)
    else:
        packed = to_panels(weight) if look_up else pack(weight)
    layer.weight = nn.Parameter(packed, requires_grad=False)


class ColumnParallelLinear(nn.Module):
    """Several projections of one input, fused: [T, in] -> [T, sum(outs) / ranks], each split by rows.

    ``outs``: (checkpoint name, full output size) in the order of the result's columns.
    """

    def __init__(
        self, in_size: int, outs: Sequence[tuple[str, int]], *, bias: bool, tp: TpGroup, like: torch.Tensor
    ) -> None:
        super().__init__()
        self.in_size, self._outs, self._tp = in_size, tuple(outs), tp
        rows = sum(tp.share(size) for _, size in outs)
        self.weight = empty(rows, in_size, like=like)
        self.bias = empty(rows, like=like) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return multiply(x, self.weight, self.bias)

    def pack(self, quantization: Quantization) -> None:
        pack_weight(self, quantization)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        row = 0
        for name, size in self._outs:
            share = self._tp.share(size)
            rows, start = slice(row, row + share), self._tp.rank * share
            yield f"{prefix}{name}.weight", Target(self.weight[rows], (size, self.in_size), start=start)
            if self.bias is not None:
                yield f"{prefix}{name}.bias", Target(self.bias[rows], (size,), start=start)
            row += share


class RowParallelLinear(nn.Module):
    """[T, in / ranks] -> added to [T, out], summed over ranks; the bias is added once, after the sum."""

    def __init__(self, name: str, in_size: int, out_size: int, *, bias: bool, tp: TpGroup, like: torch.Tensor) -> None:
        super().__init__()
        self._name, self._shape, self._tp = name, (out_size, in_size), tp
        self.in_size = tp.share(in_size)
        self.weight = empty(out_size, self.in_size, like=like)
        self.bias = empty(out_size, like=like) if bias else None

    def forward(self, x: torch.Tensor, onto: torch.Tensor) -> torch.Tensor:
        """Returns ``onto`` [T, out], to which the result was added in place."""
        if self._tp.size == 1:
            return multiply(x, self.weight, self.bias, onto)
        onto.add_(self._tp.sum(multiply(x, self.weight, None)))
        return onto if self.bias is None else onto.add_(self.bias)

    def pack(self, quantization: Quantization) -> None:
        pack_weight(self, quantization)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        start = self._tp.rank * self.weight.shape[1]
        yield f"{prefix}{self._name}.weight", Target(self.weight, self._shape, dim=1, start=start)
        if self.bias is not None:
            yield f"{prefix}{self._name}.bias", Target(self.bias, self._shape[:1])
