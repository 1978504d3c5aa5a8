"""How numbers of a checkpoint's files, whose pages are mapped, get into parameters."""

from __future__ import annotations

from typing import Protocol

import torch


class Copy(Protocol):
    """Fills a parameter, on a device or the host, with numbers of the host, perhaps of another dtype."""

    def __call__(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """``source`` may change afterwards."""
        ...


def plain_copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)
