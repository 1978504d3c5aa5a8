"""Rows between the arena and a GPU: which stream copies, and who waits for whom, with a stand-in for ``torch.cuda``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from mmserve.model_backend.platforms.cuda.row_copies import CudaRowCopies
from mmserve.model_backend.transfers import PlainTransfers

CPU = torch.device("cpu")


class Cuda:
    """Notes what is asked of it. One stream is current; the first one that is made is that of the copies."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.computing = self.current = Stream(self, "computing")

    def Stream(self, device: torch.device) -> Stream:
        return Stream(self, "copying")

    def Event(self, *, blocking: bool) -> Event:
        assert blocking, "a thread that waits in a loop holds the driver's lock"
        return Event(self)

    def current_stream(self, device: torch.device) -> Stream:
        return self.current

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self._cuda, self.name = cuda, name

    def wait_stream(self, other: Stream) -> None:
        self._cuda.events.append(f"{self.name} waits for {other.name}")


class Event:
    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self._of = cuda, ""

    def record(self, stream: Stream) -> None:
        self._of = stream.name

    def synchronize(self) -> None:
        self._cuda.events.append(f"the host waits for {self._of}")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setattr(torch, "cuda", made)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: made.events.append(f"kept for {stream.name}")
    )
    to, copy_ = torch.Tensor.to, torch.Tensor.copy_

    def noted_to(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        made.events += [f"sent by {made.current.name}"] * bool(options.get("non_blocking"))
        return to(tensor, *arguments, **options)

    def noted_copy(tensor: torch.Tensor, source: torch.Tensor, **options: Any) -> torch.Tensor:
        made.events += [f"fetched by {made.current.name}"] * bool(options.get("non_blocking"))
        return copy_(tensor, source, **options)

    monkeypatch.setattr(torch.Tensor, "to", noted_to)
    monkeypatch.setattr(torch.Tensor, "copy_", noted_copy)
    return made


def row_copies() -> CudaRowCopies:
    made = CudaRowCopies(CPU)
    made._transfers = PlainTransfers(CPU)  # type: ignore[assignment]
    return made


def test_rows_are_read_beside_what_is_computed(cuda: Cuda) -> None:
    copies, rows = row_copies(), [torch.ones(3), torch.tensor([1.0, torch.nan])]
    found, finite = copies.read(rows)
    assert [len(each) for each in found] == [3, 2]
    assert finite.wait().tolist() == [True, False]
    assert cuda.events == ["sent by copying"] * 2 + ["computing waits for copying"] + ["kept for computing"] * 2
    copies.wait()
    assert cuda.events[-1] == "the host waits for copying", "and for nothing that computes"


def test_rows_are_written_by_the_stream_of_copies(cuda: Cuda) -> None:
    copies, target = row_copies(), torch.zeros(2, 3)
    copies.write([(torch.ones(2, 3), target)])
    copies.wait()
    assert bool((target == 1).all())
    assert cuda.events == ["fetched by copying", "kept for copying", "the host waits for copying"]


def test_nothing_is_copied_any_more_when_reading_fails(cuda: Cuda) -> None:
    class Full(torch.Tensor):
        def to(self, *_: Any, **__: Any) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        row_copies().read([torch.ones(3), torch.ones(3).as_subclass(Full)])
    assert cuda.events == ["sent by copying", "the host waits for copying"]
    assert cuda.current is cuda.computing
