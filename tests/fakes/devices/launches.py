"""Counts what a GPU would have to launch: Triton kernels, which do not run, and operations of torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach"}
"""Of the operations that return new tensors, those that compute nothing."""


class _Operations(TorchDispatchMode):
    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        results = [each.alias_info for each in func._schema.returns]
        is_view = any(about is not None and not about.is_write for about in results)
        if not is_view and name not in _FREE:
            self._counts[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_launches() -> Iterator[Counter[str]]:
    """By name, within it. What kernels would have written stays as it was."""
    counts: Counter[str] = Counter()

    def launcher(kernel: InterpretedFunction, grid: object) -> Any:
        return lambda *args, **kwargs: counts.update([kernel.fn.__name__])

    with patch.object(InterpretedFunction, "__getitem__", launcher), torch.no_grad(), _Operations(counts):
        yield counts
