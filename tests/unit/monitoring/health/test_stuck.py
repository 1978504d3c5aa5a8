"""Which processes count as stuck, and the file that holds a heartbeat."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.health.heartbeat import Beat, HeartbeatSender, read_beat
from mmserve.monitoring.health.stuck import Watched, stuck_processes

NOW_S = 100.0


def _process(name: str, beat_s: float = NOW_S, progress_s: float | None = None, *, ready_s: float = 0.0) -> Watched:
    """``progress_s``: None for an idle process."""
    beat = Beat(1, beat_s, NOW_S if progress_s is None else progress_s, 1, busy=progress_s is not None)
    return Watched(name, "engine" if name in ("router", "rank") else name, ready_s, beat)


def _stuck(*processes: Watched, stalled_from_s: float = 0.0) -> set[str]:
    return set(
        stuck_processes(
            processes, lambda since_s: NOW_S - since_s, silent_s=30, stalled_s=30, stalled_from_s=stalled_from_s
        )
    )


@pytest.mark.parametrize(("age_s", "stuck"), [(29, False), (31, True)])
def test_a_process_that_does_not_beat_is_stuck_busy_or_not(age_s: float, stuck: bool) -> None:
    idle, busy = _process("http", NOW_S - age_s), _process("visual", NOW_S - age_s, NOW_S - age_s)
    assert _stuck(idle, busy) == ({"http", "visual"} if stuck else set())


def test_a_process_that_has_never_beaten_is_stuck_a_timeout_after_it_became_ready() -> None:
    assert _stuck(Watched("new", "new", 71, None), Watched("old", "old", 69, None)) == {"old"}


def test_a_heartbeat_from_before_it_was_ready_does_not_count() -> None:
    assert not _stuck(_process("http", 1.0, ready_s=90))


def test_a_busy_process_without_progress_is_stuck() -> None:
    assert _stuck(_process("visual", progress_s=69), _process("other", progress_s=71)) == {"visual"}


def test_a_router_that_waits_for_a_slow_rank_is_not_stuck() -> None:
    assert not _stuck(_process("router", progress_s=10), _process("rank", progress_s=90))


def test_an_idle_rank_does_not_excuse_the_router_that_waits_for_it() -> None:
    assert _stuck(_process("router", progress_s=10), _process("rank")) == {"router"}


def test_ranks_that_wait_for_each_other_are_stuck() -> None:
    assert _stuck(_process("router", progress_s=10), _process("rank", progress_s=10)) == {"router", "rank"}


def test_the_progress_of_another_group_is_no_excuse() -> None:
    assert _stuck(_process("visual", progress_s=10), _process("rank", progress_s=90)) == {"visual"}


def test_the_time_to_make_progress_starts_again_with_a_restart_elsewhere() -> None:
    assert not _stuck(_process("visual", progress_s=10), stalled_from_s=80)
    assert _stuck(_process("silent", 10), stalled_from_s=80) == {"silent"}


def test_work_is_timed_from_its_start_and_from_its_last_progress(tmp_path: Path) -> None:
    endpoints = Endpoints(tmp_path)
    path = endpoints.heartbeat("router-0")
    assert read_beat(path) is None
    heartbeat = HeartbeatSender(endpoints, "router-0")
    assert read_beat(path) is None

    def after(*, busy: bool, progressed: bool) -> Beat:
        heartbeat.beat(busy=busy, progressed=progressed)
        beat = read_beat(path)
        assert beat is not None
        assert (beat.pid, beat.busy) == (os.getpid(), busy)
        assert 0 <= time.monotonic() - beat.beat_s < 10
        return beat

    idle = after(busy=False, progressed=False)
    begun = after(busy=True, progressed=False)
    assert begun.progress_s > idle.progress_s, "the time without work is not held against it"
    waiting = after(busy=True, progressed=False)
    assert (waiting.progress_s, waiting.progress) == (begun.progress_s, begun.progress)
    assert waiting.beat_s > begun.beat_s
    done = after(busy=True, progressed=True)
    assert done.progress_s > waiting.progress_s
    assert done.progress == begun.progress + 1
    heartbeat.close()


def test_a_successor_starts_without_a_heartbeat(tmp_path: Path) -> None:
    endpoints = Endpoints(tmp_path)
    killed = HeartbeatSender(endpoints, "router-0")
    killed.beat(busy=True)
    successor = HeartbeatSender(endpoints, "router-0")
    assert read_beat(endpoints.heartbeat("router-0")) is None
    killed.close()
    successor.close()
