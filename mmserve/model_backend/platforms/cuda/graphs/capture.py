"""Captures work on a GPU as a CUDA graph, which a later replay launches in one call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

_RUNS_BEFORE = 2
"""Of the work as it is, so that kernels are compiled and libraries have their memory before it is captured."""


T = TypeVar("T")


class Captured(NamedTuple, Generic[T]):
    """Work on tensors that stay where they are."""

    replay: Callable[[], object]
    """Do the work again, on what the tensors hold now."""
    output: T
    """Of the last replay; other captured work may write over it."""


class Capture(Protocol):
    """``work`` reads and writes tensors that outlive the graph, and waits for nothing."""

    def run(self, work: Callable[[], object]) -> None:
        """Do the work a few times, and wait for it: first, before it is captured. Raises RuntimeError if it fails."""
        ...

    def __call__(self, work: Callable[[], T]) -> Captured[T]:
        """The device computes nothing. Raises RuntimeError if the work cannot be captured."""
        ...


class CudaCapture:
    """See ``Capture``. Graphs share one pool of memory, so they must be replayed on one stream, one after another.

    Torch refuses a pool whose graphs have all gone, and one in which a capture has failed: then another is begun.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None
        """What torch calls a handle."""
        self._in_pool: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()

    def run(self, work: Callable[[], object]) -> None:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in range(_RUNS_BEFORE):
                work()
        current.wait_stream(self._stream)
        torch.cuda.synchronize(self._device)

    def __call__(self, work: Callable[[], T]) -> Captured[T]:
        gc.collect()  # what is freed within a capture ends it
        graph, pool = torch.cuda.CUDAGraph(), self._pool
        if pool is None or not self._in_pool:
            pool = torch.cuda.graph_pool_handle()
        self._pool = None  # until this capture has succeeded
        # Other threads of this process copy to the GPU meanwhile. Torch leaves the stream of a capture that fails the
        # current one: the outer ``with`` does not.
        with (
            torch.cuda.stream(self._stream),
            torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"),
        ):
            output = work()
        self._pool = pool
        self._in_pool.add(graph)
        return Captured(graph.replay, output)
