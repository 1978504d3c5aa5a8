"""An encoder answers every picture once, keeps rows that may be asked for again, and survives bad pictures."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mmserve.messages.media import Processing
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.processors.interface import Views
from mmserve.runtime.errors import MediaError
from mmserve.visualserver.encoder import worker
from mmserve.visualserver.encoder.dialer import Job
from mmserve.visualserver.encoder.rows_cache import Key, RowsCache
from mmserve.visualserver.encoder.worker import Worker
from mmserve.visualserver.remote.frames import Encode, Fail, Result, digest
from tests.fakes.pictures.media import one_tile


class Tower:
    """Rows filled with the picture's number. The number 66 breaks it, 77 gives no finite numbers."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        self.batches.append(len(pictures))
        numbers = [float(picture.pixels.float().mean()) for picture in pictures]
        if 66.0 in numbers:
            raise RuntimeError("out of luck")
        return [torch.full((2, 3), torch.nan if number == 77.0 else number) for number in numbers]


def decode(name: int, data: memoryview, processing: Processing) -> Views:
    if data[0] == 0:
        raise MediaError("no picture")
    return one_tile(data[0])


class Asker:
    def __init__(self) -> None:
        self.answers: dict[int, tuple[Result | Fail, bytes]] = {}

    def job(self, number: int, content: int, key: bytes = b"key") -> Job:
        data = bytearray([content])
        message = Encode(job=number, processing=Processing(), key=key, nbytes=1, digest=digest(data))
        return Job(message, data, 0.0, self._answer)

    def _answer(self, message: Result | Fail, rows: memoryview) -> None:
        assert message.job not in self.answers
        self.answers[message.job] = message, bytes(rows)


def test_each_picture_gets_its_rows_or_a_reason() -> None:
    asker, tower = Asker(), Tower()
    encoder = Worker(decode, tower, torch.float32, RowsCache(1000), 8)
    encoder.encode([asker.job(number, content) for number, content in enumerate([5, 0, 66, 77, 6])])
    for number, content in ((0, 5.0), (4, 6.0)):
        message, rows = asker.answers[number]
        assert isinstance(message, Result)
        assert np.frombuffer(rows, np.float32).tolist() == [content] * 6
        assert (message.nbytes, message.digest) == (24, digest(rows))
    reasons = [message.reason for message, _ in asker.answers.values() if isinstance(message, Fail)]
    assert reasons == ["no picture", *["the vision tower has no finite numbers for it"] * 2]
    assert tower.batches == [4, 1, 1, 1, 1], "after the error each was tried alone"


def test_what_a_failed_call_has_computed_is_freed_before_its_pictures_are_tried_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker.logger, "exception", lambda *_: None)  # pytest keeps what is logged, with its frames
    kept: list[weakref.ref[torch.Tensor]] = []

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        assert not any(each() is not None for each in kept)
        computed = torch.ones(2, 3)
        kept.append(weakref.ref(computed))
        if len(pictures) > 1:
            raise torch.OutOfMemoryError("for so many")
        return [torch.ones(2, 3)]

    asker = Asker()
    Worker(decode, tower, torch.float32, RowsCache(1000), 8).encode([asker.job(1, 5), asker.job(2, 6)])
    assert all(isinstance(message, Result) for message, _ in asker.answers.values())
    assert len(kept) == 3


def test_memory_that_runs_out_costs_a_retry_in_smaller_calls_now_and_later() -> None:
    asker, calls, released = Asker(), list[int](), list[int]()

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        calls.append(len(pictures))
        if len(pictures) > 2:
            raise torch.OutOfMemoryError("for so many")
        return [torch.full((2, 3), float(picture.pixels.float().mean())) for picture in pictures]

    cache = RowsCache(1000)
    encoder = Worker(decode, tower, torch.float32, cache, 8, lambda: released.append(len(calls)))
    parts: list[int] = []
    encoder.advanced = lambda: parts.append(len(calls))
    encoder.encode([asker.job(number, 10 + number) for number in range(5)])
    assert parts == [0, 0, 0, 0, 0, 2, 3, 4], "behind each picture that is decoded and each call"
    encoder.encode([asker.job(number, 10 + number) for number in range(5, 8)])
    assert calls == [5, 2, 2, 1, 2, 1]
    assert released == [1]
    for number, (message, rows) in asker.answers.items():
        assert isinstance(message, Result)
        assert np.frombuffer(rows, np.float32).tolist() == [10.0 + number] * 6


def test_a_picture_for_which_memory_does_not_suffice_fails_alone() -> None:
    asker = Asker()

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        if any(float(picture.pixels.float().mean()) == 66.0 for picture in pictures):
            raise torch.OutOfMemoryError("for this one")
        return [torch.ones(2, 3) for _ in pictures]

    encoder = Worker(decode, tower, torch.float32, RowsCache(1000), 8)
    encoder.encode([asker.job(number, content) for number, content in enumerate([5, 66, 7])])
    assert [number for number, (message, _) in sorted(asker.answers.items()) if isinstance(message, Fail)] == [1]


def test_rows_are_computed_once() -> None:
    asker, tower = Asker(), Tower()
    encoder = Worker(decode, tower, torch.bfloat16, RowsCache(1000), 8)
    encoder.encode([asker.job(1, 5)])
    encoder.encode([asker.job(2, 5), asker.job(3, 6)])
    assert tower.batches == [1, 1]
    assert asker.answers[1][1] == asker.answers[2][1] != asker.answers[3][1]
    assert len(asker.answers[1][1]) == 12


def test_rows_are_not_found_by_clients_that_share_no_cache() -> None:
    asker, tower = Asker(), Tower()
    encoder = Worker(decode, tower, torch.bfloat16, RowsCache(1000), 8)
    for number, key in enumerate((b"alice's", b"bob's", b"bob's")):
        encoder.encode([asker.job(number, 5, key)])
    assert tower.batches == [1, 1], "how soon an answer comes tells what others have sent"


def test_rows_that_are_kept_are_no_part_of_what_the_tower_has_returned() -> None:
    asker, both = Asker(), torch.ones(4, 3)
    encoder = Worker(decode, lambda pictures: list(both.split(2)), torch.float32, RowsCache(1000), 8)
    encoder.encode([asker.job(1, 5), asker.job(2, 6)])
    both.zero_()
    encoder.encode([asker.job(3, 5)])
    assert np.frombuffer(asker.answers[3][1], np.float32).tolist() == [1.0] * 6


def test_the_cache_keeps_the_rows_used_last() -> None:
    cache = RowsCache(10)
    keys = [Key(b"", bytes([number]), Processing()) for number in range(4)]
    for key in keys[:2]:
        cache.put(key, memoryview(bytes(5)))
    assert cache.get(keys[0]) is not None
    cache.put(keys[2], memoryview(bytes(5)))
    cache.put(keys[3], memoryview(bytes(11)))
    assert [cache.get(key) is not None for key in keys] == [True, False, True, False]
