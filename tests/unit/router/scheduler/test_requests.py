from __future__ import annotations

from mmserve.router.scheduler.requests import RequestRegistry
from mmserve.router.scheduler.sequence import Sequence
from tests.unit.router.builders import request


def test_the_current_attempt_and_older_ones_count_as_seen() -> None:
    registry = RequestRegistry()
    sequence = Sequence(request("a", [1], attempt=1), 0, 0.0, 100)
    assert not registry.has_seen("a", 0)
    registry.add(sequence)
    assert registry.live("a") is sequence
    assert [registry.has_seen("a", attempt) for attempt in range(3)] == [True, True, False]
    registry.end("a", 1)
    assert registry.live("a") is None
    assert [registry.has_seen("a", attempt) for attempt in range(3)] == [True, True, False]


def test_the_number_of_remembered_ids_is_bounded() -> None:
    registry = RequestRegistry(max_ended=3)
    for number in range(5):
        registry.end(str(number), 0)
    assert [registry.has_seen(str(number), 0) for number in range(5)] == [False, False, True, True, True]
