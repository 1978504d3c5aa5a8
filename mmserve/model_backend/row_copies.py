"""Copies of embedding rows between the arena and a device, beside what the device computes.

A device has a queue of their own for them: nobody waits for a step that was launched before, and kernels wait for the
rows that they read. Whoever holds the lease of an extent, or its lock, must call ``wait`` before it lets go of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from mmserve.model_backend.transfers import HostCopy


class RowCopies(Protocol):
    """To and from one device. Not thread-safe."""

    def read(self, rows: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], HostCopy]:
        """Begin to copy each of these lists of numbers to the device, at least one.

        Returns them, for operations that are issued from now on, and for each whether all its numbers are finite, which
        can be waited for without what was issued before. If it raises, nothing is being copied.
        """
        ...

    def write(self, rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Begin to copy numbers of the device, that have been computed, to the host: (from, to) of the same shape and
        dtype."""
        ...

    def wait(self) -> None:
        """Until all copies that have begun are over."""
        ...


class PlainRowCopies:
    """See ``RowCopies``. For a device in host memory, which reads rows where they are."""

    def read(self, rows: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], HostCopy]:
        return list(rows), _Known(torch.stack([torch.isfinite(each).all() for each in rows]))

    def write(self, rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        for source, target in rows:
            target.copy_(source)

    def wait(self) -> None:
        pass


class _Known:
    def __init__(self, values: torch.Tensor) -> None:
        self._values = values

    def wait(self) -> torch.Tensor:
        return self._values
