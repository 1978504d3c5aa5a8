"""Linear layers whose outputs (column parallel) or inputs (row parallel) are split over the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from mmserve.model_backend.layers.packed import multiply, pack, quantize, to_panels
from mmserve.model_backend.parallel import TpGroup
from mmserve.model_backend.weights import Target


def empty(*shape: int, like: torch.Tensor) -> nn.Parameter:
    """An uninitialised parameter with the dtype and device of ``like``."""
    return nn.Parameter(torch.empty(*shape, dtype=like.dtype, device=like.device), requires_grad=False)


@runtime_checkable
class Packable(Protocol):
    """A layer whose weight may change its layout once it is loaded."""

    def pack(self, *, int8: bool) -> None: ...


@torch.inference_mode()
def pack_linears(model: nn.Module, *, int8: bool = False) -> None:
    """Bring the loaded weights of all layers into the layout that is fastest to multiply with, or quantize them."""
    for module in model.modules():
        if isinstance(module, Packable):
            module.pack(int8=int8)


def pack_weight(layer: nn.Module, *, int8: bool, look_up: bool = False) -> None:
    """Replace ``layer.weight``, and ``layer.scale`` if it is quantized. ``look_up``: its rows are still needed."""
    assert isinstance(layer.weight, nn.Parameter)
    weight, scale = quantize(layer.weight.data) if int8 else ((to_panels if look_up else pack)(layer.weight.data), None)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.register_parameter("scale", scale if scale is None else nn.Parameter(scale, requires_grad=False))


class ColumnParallelLinear(nn.Module):
    """Several projections of one input, fused: [T, in] -> [T, sum(outs) / ranks], each split by rows.

    ``outs``: (checkpoint name, full output size) in the order of the result's columns.
    """

    scale: nn.Parameter | None

    def __init__(
        self, in_size: int, outs: Sequence[tuple[str, int]], *, bias: bool, tp: TpGroup, like: torch.Tensor
    ) -> None:
        super().__init__()
        self._in_size, self._outs, self._tp = in_size, tuple(outs), tp
        rows = sum(tp.share(size) for _, size in outs)
        self.weight = empty(rows, in_size, like=like)
        self.register_parameter("scale", None)
        self.bias = empty(rows, like=like) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return multiply(x, self.weight, self.bias, scale=self.scale)

    def pack(self, *, int8: bool) -> None:
        pack_weight(self, int8=int8)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        row = 0
        for name, size in self._outs:
            share = self._tp.share(size)
            rows, start = slice(row, row + share), self._tp.rank * share
            yield f"{prefix}{name}.weight", Target(self.weight[rows], (size, self._in_size), start=start)
            if self.bias is not None:
                yield f"{prefix}{name}.bias", Target(self.bias[rows], (size,), start=start)
            row += share


class RowParallelLinear(nn.Module):
    """[T, in / ranks] -> added to [T, out], summed over ranks; the bias is added once, after the sum."""

    scale: nn.Parameter | None

    def __init__(self, name: str, in_size: int, out_size: int, *, bias: bool, tp: TpGroup, like: torch.Tensor) -> None:
        super().__init__()
        self._name, self._shape, self._tp = name, (out_size, in_size), tp
        self.weight = empty(out_size, tp.share(in_size), like=like)
        self.register_parameter("scale", None)
        self.bias = empty(out_size, like=like) if bias else None

    def forward(self, x: torch.Tensor, onto: torch.Tensor) -> torch.Tensor:
        """Returns ``onto`` [T, out], to which the result was added in place."""
        if self._tp.size == 1:
            return multiply(x, self.weight, self.bias, onto, self.scale)
        onto.add_(self._tp.sum(multiply(x, self.weight, None, scale=self.scale)))
        return onto if self.bias is None else onto.add_(self.bias)

    def pack(self, *, int8: bool) -> None:
        pack_weight(self, int8=int8)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        start = self._tp.rank * self.weight.shape[1]
        yield f"{prefix}{self._name}.weight", Target(self.weight, self._shape, dim=1, start=start)
        if self.bias is not None:
            yield f"{prefix}{self._name}.bias", Target(self.bias, self._shape[:1])
