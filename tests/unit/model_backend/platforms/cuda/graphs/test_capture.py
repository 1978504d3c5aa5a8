"""A capture that fails, with a stand-in for what it uses of ``torch.cuda``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mmserve.model_backend.platforms.cuda.graphs.capture import CudaCapture


class Stream:
    def wait_stream(self, other: Stream) -> None:
        pass


class Cuda:
    """One thread's current stream. As in torch, a capture that fails raises before it leaves its stream."""

    def __init__(self) -> None:
        self.current = self.default = Stream()
        self.Stream: Callable[[Any], Stream] = lambda device: Stream()
        self.CUDAGraph = self.graph_pool_handle = lambda: None
        self.synchronize = lambda device: None

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
    def graph(self, graph: Any, *, stream: Stream, **_: Any) -> Iterator[None]:
        self.current = stream
        yield
        raise AssertionError("no capture here succeeds")


def test_a_capture_that_fails_leaves_the_current_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, runs = Cuda(), []
    monkeypatch.setattr(torch, "cuda", cuda)
    capture = CudaCapture(torch.device("cpu"))

    def work() -> torch.Tensor:
        runs.append(cuda.current)
        if len(runs) == 3:
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.zeros(1)

    with pytest.raises(RuntimeError, match="not permitted"):
        capture(work)
    assert cuda.default not in runs
    assert cuda.current is cuda.default
