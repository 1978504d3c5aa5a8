"""The interface of weight formats: how one linear layer's weights are stored, loaded and multiplied with.

A format is one class. A platform chooses it by the quantization asked for and the layer's shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch

from mmserve.model_backend.layers.target import LinearShard, Target


class LinearShape(NamedTuple):
    """A weight matrix of this rank: [out_size, in_size]. Outputs from ``used`` on are padding, with zero weights."""

    out_size: int
    in_size: int
    used: int
    names: tuple[str, ...] = ()
    """Canonical names of the checkpoint's matrices that it holds: one, or several that are fused. A platform needs them
    for quantized checkpoints that leave some modules unconverted."""
    quantizable: bool = True

    @classmethod
    def full(cls, out_size: int, in_size: int, names: tuple[str, ...] = (), *, quantizable: bool = True) -> LinearShape:
        """Without padding."""
        return cls(out_size, in_size, out_size, names, quantizable)


class LinearMethod(Protocol):
    """The weights of one linear layer in one format. The constructor allocates them as the checkpoint stores them."""

    adds_residual: bool
    """``apply`` adds a residual while it multiplies; else by a pass of its own, which another operation could make."""

    def targets(self, shard: LinearShard) -> Iterator[tuple[str, Target]]:
        """(canonical name, target) of each checkpoint tensor that stores this shard."""
        ...

    def finish_loading(self) -> None:
        """Convert the loaded weights into the layout that ``apply`` reads. Called once."""
        ...

    def apply(
        self, x: torch.Tensor, bias: torch.Tensor | None = None, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[..., in] -> [..., out] = x W^T + bias. With ``residual`` the result is added to it in place and returned."""
        ...


class EmbeddingMethod(LinearMethod, Protocol):
    """A matrix whose rows can also be looked up: a token embedding, which may be the output head as well."""

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [T] -> those rows [T, in]."""
        ...
