"""Live, ready, and why not."""

from __future__ import annotations

from mmserve.health.state import DEAD_S, SILENT_S, STALLED_S, HealthState
from mmserve.messages.reply import ServerPhase
from mmserve.messages.status import Heartbeat

READY = ServerPhase(phase="ready", ready=True, engine_epoch=2)


def _beat(progress: int, *, busy: bool = True) -> Heartbeat:
    return Heartbeat(process="router-0", progress=progress, busy=busy)


def test_not_ready_until_the_supervisor_says_so() -> None:
    vitals = HealthState()
    assert vitals.is_live(0)
    assert not vitals.is_ready(0)
    vitals.apply(READY, 0)
    assert vitals.is_ready(0)
    vitals.apply(ServerPhase(phase="draining", ready=False), 1)
    assert not vitals.is_ready(1)
    assert vitals.report(1)["reasons"] == ["phase is draining"]


def test_a_silent_process_makes_it_unready_and_in_the_end_dead() -> None:
    vitals = HealthState()
    vitals.apply(READY, 0)
    vitals.apply(_beat(1, busy=False), 0)
    assert vitals.is_ready(SILENT_S)
    assert not vitals.is_ready(SILENT_S + 1)
    assert vitals.is_live(SILENT_S + 1)
    assert not vitals.is_live(DEAD_S + 1)


def test_busy_without_progress_is_a_stall() -> None:
    vitals = HealthState()
    vitals.apply(READY, 0)
    now = 0.0
    while now <= STALLED_S + 1:
        vitals.apply(_beat(5), now)
        now += 1
    assert not vitals.is_ready(now)
    assert "busy without progress" in vitals.troubles(now)[0]
    vitals.apply(_beat(6), now)
    assert vitals.is_ready(now)


def test_idle_is_no_stall_and_work_after_idling_starts_the_clock_anew() -> None:
    vitals = HealthState()
    vitals.apply(READY, 0)
    vitals.apply(_beat(5, busy=True), 0)
    vitals.apply(_beat(5, busy=False), STALLED_S)
    vitals.apply(_beat(5, busy=True), 2 * STALLED_S)
    vitals.apply(_beat(5, busy=True), 2 * STALLED_S + 2)
    assert vitals.is_ready(2 * STALLED_S + 3)


def test_a_restarted_process_counts_from_its_own_start() -> None:
    vitals = HealthState()
    vitals.apply(READY, 0)
    vitals.apply(_beat(500), 0)
    vitals.apply(_beat(1), STALLED_S + 5)
    assert vitals.is_ready(STALLED_S + 5)


def test_the_report_names_everything() -> None:
    vitals = HealthState()
    vitals.apply(READY, 0)
    vitals.apply(_beat(3), 1)
    report = vitals.report(2)
    assert report["status"] == "ok"
    assert report["epochs"] == {"engine": 2, "visual": 0, "cache": 0}
    assert report["processes"] == {
        "router-0": {"heartbeat_age_s": 1, "busy": True, "progress": 3, "without_progress_s": 1}
    }
