"""Captures that fail, and the pools of graphs that have gone, with a stand-in for what is used of ``torch.cuda``."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mmserve.model_backend.platforms.cuda.graphs.capture import CudaCapture


class Stream:
    def wait_stream(self, other: Stream) -> None:
        pass


class Graph:
    def replay(self) -> None:
        pass


class Cuda:
    """One thread's current stream. As in torch, a capture that fails raises before it leaves its stream, and a pool is
    refused in which one has failed or whose graphs have all gone."""

    def __init__(self) -> None:
        self.current = self.default = Stream()
        self.Stream: Callable[[Any], Stream] = lambda device: Stream()
        self.CUDAGraph, self.synchronize = Graph, lambda device: None
        self.pools: list[weakref.WeakSet[Graph] | None] = []
        """Graphs of each pool; None: a capture in it has failed."""
        self._used: set[int] = set()

    def graph_pool_handle(self) -> int:
        self.pools.append(weakref.WeakSet())
        return len(self.pools) - 1

    def current_stream(self, device: Any) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: Graph, *, pool: int, stream: Stream, **_: Any) -> Iterator[None]:
        self.current, before = stream, self.current
        others, used = self.pools[pool], pool in self._used
        assert others is not None, "already recording to mempool_id"
        assert others or not used, "use_count > 0 INTERNAL ASSERT FAILED"
        self._used.add(pool)
        self.pools[pool] = None
        yield
        self.current, self.pools[pool] = before, others
        others.add(graph)


def test_a_capture_that_fails_leaves_the_current_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, runs = Cuda(), []
    monkeypatch.setattr(torch, "cuda", cuda)
    capture = CudaCapture(torch.device("cpu"))

    def work() -> torch.Tensor:
        runs.append(cuda.current)
        if len(runs) == 3:
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.zeros(1)

    capture.run(work)
    with pytest.raises(RuntimeError, match="not permitted"):
        capture(work)
    assert cuda.default not in runs
    assert cuda.current is cuda.default


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(torch, "cuda", made)
    gc.freeze()  # each capture collects garbage, and need not look at what other tests keep
    return made


def test_graphs_share_a_pool_until_all_of_them_have_gone(cuda: Cuda) -> None:
    capture = CudaCapture(torch.device("cpu"))
    kept = [capture(lambda: torch.zeros(1)) for _ in range(3)]
    assert len(cuda.pools) == 1
    kept.clear()
    gc.collect()
    kept.append(capture(lambda: torch.zeros(1)))
    assert len(cuda.pools) == 2


def test_after_a_capture_that_failed_the_next_one_begins_a_pool(cuda: Cuda) -> None:
    capture, fail = CudaCapture(torch.device("cpu")), [False, True]

    def work() -> torch.Tensor:
        if fail and fail.pop(0):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.zeros(1)

    first = capture(work)
    with pytest.raises(torch.OutOfMemoryError):
        capture(work)
    second = capture(work)
    assert first.output is not second.output
    assert len(cuda.pools) == 2
