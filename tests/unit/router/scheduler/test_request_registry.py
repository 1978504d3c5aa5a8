from __future__ import annotations

from mmserve.router.scheduler.request_registry import RequestRegistry
from mmserve.router.scheduler.sequence import Sequence
from tests.unit.router.builders import request


def test_known_attempts_and_older_ones_have_been_seen() -> None:
    attempts = RequestRegistry()
    sequence = Sequence(request("a", [1], attempt=1), 0, 0.0, 100)
    assert not attempts.has_seen("a", 0)
    attempts.begin(sequence)
    assert attempts.live("a") is sequence
    assert [attempts.has_seen("a", attempt) for attempt in range(3)] == [True, True, False]
    attempts.end("a", 1)
    assert attempts.live("a") is None
    assert [attempts.has_seen("a", attempt) for attempt in range(3)] == [True, True, False]


def test_the_memory_of_ended_ids_is_bounded() -> None:
    attempts = RequestRegistry(remembered=3)
    for number in range(5):
        attempts.end(str(number), 0)
    assert [attempts.has_seen(str(number), 0) for number in range(5)] == [False, False, True, True, True]
