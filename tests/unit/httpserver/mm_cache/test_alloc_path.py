"""Which lane a request takes, and who follows when that changes."""

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
def share(tmp_path: Path) -> Iterator[TrafficSplit]:
    with closing(TrafficSplit(tmp_path / "share", 1.0)) as share:
        yield share


class Counted:
    """How many requests took each lane."""

    def __init__(self, share: TrafficSplit, **options: Any) -> None:
        v1, self._v2 = AllocPath(NOTHING, "v1"), AllocPath(NOTHING, "v2")  # type: ignore[arg-type]
        self._lanes = AllocPaths(v1, self._v2, share, **options)

    def v2_of(self, requests: int) -> int:
        return sum(self._lanes.choose() is self._v2 for _ in range(requests))


def test_none_and_all_are_exact(share: TrafficSplit) -> None:
    counted = Counted(share)
    for fraction, expected in ((0.0, 0), (1.0, 500), (0.0, 0)):
        share.fraction = fraction
        assert counted.v2_of(500) == expected
    smallest = Counted(share, draw=lambda: 0.0)
    assert smallest.v2_of(1) == 0
    share.fraction = 1.0
    largest = Counted(share, draw=lambda: 1.0 - 2**-53)
    assert largest.v2_of(1) == 1


def test_a_share_is_about_that_share(share: TrafficSplit) -> None:
    share.fraction = 0.3
    assert 2700 < Counted(share, draw=random.Random(1).random).v2_of(10_000) < 3300


def test_what_one_sets_all_read(tmp_path: Path) -> None:
    path = tmp_path / "share"
    with closing(TrafficSplit(path, 0.25)) as one, closing(TrafficSplit(path, 1.0)) as other:
        assert one.fraction == other.fraction == 0.25
        other.fraction = 0.75
        assert one.fraction == 0.75
    with closing(TrafficSplit(path, 0.25)) as restarted:
        assert restarted.fraction == 0.75
    assert [found.name for found in tmp_path.iterdir()] == ["share"]


def test_many_begin_at_once_and_agree(tmp_path: Path) -> None:
    """Whoever comes first names the file; none sees it half made."""
    barrier, found = threading.Barrier(8), []

    def begin(initial: float) -> None:
        barrier.wait()
        with closing(TrafficSplit(tmp_path / "share", initial)) as share:
            found.append(share.fraction)

    threads = [threading.Thread(target=begin, args=(number / 8,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert found[0] > 0
