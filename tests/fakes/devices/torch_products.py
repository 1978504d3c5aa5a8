"""Notices the matrix products that torch computes itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "linear", "convolution", "_linear_pointwise"}
"""Torch's operators that multiply matrices, besides those of attention."""


class TorchProducts(TorchDispatchMode):
    """While it is entered, collects the names of torch's operators that multiply matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _PRODUCTS or "attention" in name:
            self.found.add(name)
        return func(*args, **(kwargs or {}))
