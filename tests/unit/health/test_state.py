"""Liveness and readiness from heartbeats and phases."""

from __future__ import annotations

import msgspec

from mmserve.health.state import DEAD_S, SILENT_S, STALLED_S, HealthState
from mmserve.messages.reply import ServerPhase
from mmserve.messages.status import Heartbeat

READY = ServerPhase(phase="ready", ready=True, engine_epoch=2)


def _beat(progress: int, *, busy: bool = True) -> Heartbeat:
    return Heartbeat(process="router-0", progress=progress, busy=busy)


def test_readiness_follows_the_supervisors_phase() -> None:
    state = HealthState()
    assert state.is_live(0)
    assert not state.is_ready(0)
    state.apply(READY, 0)
    assert state.is_ready(0)
    state.apply(ServerPhase(phase="draining", ready=False), 1)
    assert not state.is_ready(1)
    assert state.report(1)["reasons"] == ["phase is draining"]


def test_a_silent_process_makes_the_server_unready_and_later_not_live() -> None:
    state = HealthState()
    state.apply(READY, 0)
    state.apply(_beat(1, busy=False), 0)
    assert state.is_ready(SILENT_S)
    assert not state.is_ready(SILENT_S + 1)
    assert state.is_live(SILENT_S + 1)
    assert not state.is_live(DEAD_S + 1)


def test_busy_without_progress_is_a_stall() -> None:
    state = HealthState()
    state.apply(READY, 0)
    now = 0.0
    while now <= STALLED_S + 1:
        state.apply(_beat(5), now)
        now += 1
    assert not state.is_ready(now)
    assert "busy without progress" in state.stuck_processes(now)[0]
    state.apply(_beat(6), now)
    assert state.is_ready(now)


def test_an_idle_process_is_not_stalled_and_its_next_work_is_timed_from_its_start() -> None:
    state = HealthState()
    state.apply(READY, 0)
    state.apply(_beat(5, busy=True), 0)
    state.apply(_beat(5, busy=False), STALLED_S)
    state.apply(_beat(5, busy=True), 2 * STALLED_S)
    state.apply(_beat(5, busy=True), 2 * STALLED_S + 2)
    assert state.is_ready(2 * STALLED_S + 3)


def test_a_restarted_process_is_not_stalled() -> None:
    state = HealthState()
    state.apply(READY, 0)
    state.apply(_beat(500), 0)
    state.apply(_beat(1), STALLED_S + 5)
    assert state.is_ready(STALLED_S + 5)


def test_the_report_lists_epochs_and_processes() -> None:
    state = HealthState()
    state.apply(msgspec.structs.replace(READY, visual_epochs=(1, 0)), 0)
    state.apply(_beat(3), 1)
    report = state.report(2)
    assert report["status"] == "ok"
    assert report["epochs"] == {"engine": 2, "visual": [1, 0], "cache": 0}
    assert report["processes"] == {
        "router-0": {"heartbeat_age_s": 1, "busy": True, "progress": 3, "without_progress_s": 1}
    }
