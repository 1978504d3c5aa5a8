"""Which part of a parameter a tensor of the checkpoint goes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Target:
    """Destination of a checkpoint tensor of ``shape``: its slice from ``start`` on along ``dim`` is copied ``into``."""

    into: torch.Tensor
    shape: tuple[int, ...]
    dim: int = 0
    start: int = 0
    offset: float = 0.0
    """Added to the numbers."""


Targets = Mapping[str, Target | None]
"""Canonical tensor name -> target; None: a known tensor that this process does not need."""


@dataclass(frozen=True)
class LinearShard:
    """This rank's part of one checkpoint matrix [out, in], and the rows of the layer's matrix that it fills.

    ``name``: the matrix's canonical name without the suffix of its tensors, such as ``.weight``. The part begins at
    ``start`` along ``dim`` (0: outputs, 1: inputs).
    """

    name: str
    shape: tuple[int, int]
    rows: slice
    dim: int
    start: int
