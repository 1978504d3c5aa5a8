"""Heartbeats during a long step: progress while the process computes, none while it waits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.health.heartbeat import Beat, HeartbeatSender, read_beat
from mmserve.monitoring.health.long_work import LongWork
from mmserve.runtime.cpu import compute_progress
from tests.fakes.pictures.cache import until

INTERVAL_S = 0.01
_LARGE = bytes(1 << 22)


@pytest.fixture(autouse=True)
def _little_is_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_progress, "_MIN_COMPUTED_S", 0.02)


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return Endpoints(tmp_path)


@pytest.fixture
def heartbeat(endpoints: Endpoints) -> Iterator[HeartbeatSender]:
    with closing(HeartbeatSender(endpoints, "rank")) as heartbeat:
        heartbeat.beat(busy=True)
        yield heartbeat


def _last(endpoints: Endpoints) -> Beat:
    beat = read_beat(endpoints.heartbeat("rank"))
    assert beat is not None
    return beat


def _beats_for(endpoints: Endpoints, work: Callable[[], object], count: int = 5) -> None:
    """Repeat ``work`` until that many heartbeats were seen."""
    seen: set[float] = set()

    def done() -> bool:
        work()
        seen.add(_last(endpoints).beat_s)
        return len(seen) > count

    until(done)


def test_a_long_native_call_is_progress(endpoints: Endpoints, heartbeat: HeartbeatSender) -> None:
    before = _last(endpoints)
    with LongWork(heartbeat, counts_cpu_time=True, interval_s=INTERVAL_S) as long_work, long_work.computing():
        until(lambda: bool(hashlib.sha256(_LARGE)) and _last(endpoints).progress > before.progress)
        assert _last(endpoints).busy


def test_waiting_beats_without_progress(endpoints: Endpoints, heartbeat: HeartbeatSender) -> None:
    with LongWork(heartbeat, counts_cpu_time=True, interval_s=INTERVAL_S) as long_work, long_work.computing():
        time.sleep(3 * INTERVAL_S)
        before = _last(endpoints)
        _beats_for(endpoints, lambda: time.sleep(INTERVAL_S))
        assert _last(endpoints).progress - before.progress <= 1, "it only waited"
        assert _last(endpoints).beat_s > before.beat_s


def test_cpu_time_is_no_progress_where_waiting_is_a_busy_loop(endpoints: Endpoints, heartbeat: HeartbeatSender) -> None:
    before = _last(endpoints)
    with LongWork(heartbeat, counts_cpu_time=False, interval_s=INTERVAL_S) as long_work, long_work.computing():
        _beats_for(endpoints, lambda: hashlib.sha256(_LARGE))
        assert _last(endpoints).progress == before.progress


def test_parts_that_end_are_progress_everywhere(endpoints: Endpoints, heartbeat: HeartbeatSender) -> None:
    before = _last(endpoints)
    with LongWork(heartbeat, counts_cpu_time=False, interval_s=INTERVAL_S) as long_work, long_work.computing():
        long_work.advanced()
        until(lambda: _last(endpoints).progress > before.progress)
        after = _last(endpoints)
        _beats_for(endpoints, lambda: time.sleep(INTERVAL_S))
        assert _last(endpoints).progress == after.progress, "no other part has ended"


def test_an_idle_main_loop_beats_by_itself(endpoints: Endpoints, heartbeat: HeartbeatSender) -> None:
    before = _last(endpoints)
    with LongWork(heartbeat, counts_cpu_time=True, interval_s=INTERVAL_S):
        time.sleep(5 * INTERVAL_S)
    assert _last(endpoints) == before
