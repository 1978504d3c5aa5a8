"""Root mean square normalisation (Zhang and Sennrich 2019)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from mmserve.model_backend.layers.linear import empty
from mmserve.model_backend.loader.weights import Target
from mmserve.model_backend.platforms.cpu import kernels


class RmsNorm(nn.Module):
    """[T, size] -> [T, size]; statistics in float32."""

    def __init__(self, size: int, eps: float, *, like: torch.Tensor) -> None:
        super().__init__()
        self._eps = eps
        self.weight = empty(size, like=like)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if kernels.usable(x) and x.shape[-1] % 8 == 0:
            return kernels.rms_norm(x, self.weight, self._eps)
        return F.rms_norm(x, self.weight.shape, self.weight, self._eps)

    def targets(self, name: str) -> Iterator[tuple[str, Target]]:
        yield f"{name}.weight", Target(self.weight, tuple(self.weight.shape))
