"""The choice between the allocation paths, and the traffic split that all workers share."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mmserve.httpserver.mm_cache.alloc_path import AllocPath, AllocPaths
from mmserve.httpserver.mm_cache.traffic_split import TrafficSplit

NOTHING: Any = None


@pytest.fixture
def split(tmp_path: Path) -> Iterator[TrafficSplit]:
    with closing(TrafficSplit(tmp_path / "share", 1.0)) as split:
        yield split


class ChoiceCounter:
    """Counts how many requests use v2."""

    def __init__(self, split: TrafficSplit, **options: Any) -> None:
        v1, self._v2 = AllocPath(NOTHING, "v1"), AllocPath(NOTHING, "v2")  # type: ignore[arg-type]
        self._paths = AllocPaths(v1, self._v2, split, **options)

    def num_v2(self, requests: int) -> int:
        return sum(self._paths.choose() is self._v2 for _ in range(requests))


def test_fractions_0_and_1_are_exact(split: TrafficSplit) -> None:
    counter = ChoiceCounter(split)
    for fraction, expected in ((0.0, 0), (1.0, 500), (0.0, 0)):
        split.fraction = fraction
        assert counter.num_v2(500) == expected
    smallest = ChoiceCounter(split, draw=lambda: 0.0)
    assert smallest.num_v2(1) == 0
    split.fraction = 1.0
    largest = ChoiceCounter(split, draw=lambda: 1.0 - 2**-53)
    assert largest.num_v2(1) == 1


def test_about_the_given_fraction_of_requests_uses_v2(split: TrafficSplit) -> None:
    split.fraction = 0.3
    assert 2700 < ChoiceCounter(split, draw=random.Random(1).random).num_v2(10_000) < 3300


def test_a_fraction_set_by_one_worker_is_read_by_all(tmp_path: Path) -> None:
    path = tmp_path / "share"
    with closing(TrafficSplit(path, 0.25)) as one, closing(TrafficSplit(path, 1.0)) as other:
        assert one.fraction == other.fraction == 0.25
        other.fraction = 0.75
        assert one.fraction == 0.75
    with closing(TrafficSplit(path, 0.25)) as restarted:
        assert restarted.fraction == 0.75
    assert [found.name for found in tmp_path.iterdir()] == ["share"]


def test_workers_that_start_at_once_agree_on_one_fraction(tmp_path: Path) -> None:
    """The first worker creates the file; no worker sees it incomplete."""
    barrier, found = threading.Barrier(8), []

    def start(initial: float) -> None:
        barrier.wait()
        with closing(TrafficSplit(tmp_path / "share", initial)) as split:
            found.append(split.fraction)

    threads = [threading.Thread(target=start, args=(number / 8,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert found[0] > 0
