"""Liveness and readiness from phases, processes and heartbeats."""

from __future__ import annotations

import msgspec

from mmserve.messages.reply import ServerPhase
from mmserve.messages.status import ProcessRow, ProcessTable
from mmserve.monitoring.health.heartbeat import Beat
from mmserve.monitoring.health.state import DEAD_S, SILENT_S, STALLED_S, HealthState

READY = ServerPhase(phase="ready", ready=True, engine_epoch=2)
PID = 77


class Server:
    """A state that was told of one ready process, with a heartbeat that the test sets."""

    def __init__(self, ready_s: float | None = 0.0) -> None:
        self.beat: Beat | None = None
        self.state = HealthState(lambda name: self.beat)
        row = ProcessRow("router-0", "router", "engine", PID, 0.0, ready_s, restarts=3)
        self.state.apply(ProcessTable(supervisor_pid=9, started_s=0.0, processes=(row,)))
        self.state.apply(READY)


def test_readiness_follows_the_supervisors_phase() -> None:
    state = HealthState(lambda name: None)
    assert state.is_live(0)
    assert not state.is_ready(0)
    state.apply(READY)
    assert state.is_ready(0)
    state.apply(ServerPhase(phase="draining", ready=False))
    assert not state.is_ready(1)
    assert state.report(1)["reasons"] == ["phase is draining"]


def test_a_silent_process_makes_the_server_unready_and_later_not_live() -> None:
    server = Server()
    server.beat = Beat(PID, 5.0, 5.0, 1, busy=False)
    assert server.state.is_ready(5 + SILENT_S)
    assert not server.state.is_ready(6 + SILENT_S)
    assert server.state.is_live(6 + SILENT_S)
    assert not server.state.is_live(6 + DEAD_S)


def test_busy_without_progress_is_a_stall() -> None:
    server = Server()
    now_s = STALLED_S + 6
    server.beat = Beat(PID, now_s, 5.0, 1, busy=True)
    assert not server.state.is_ready(now_s)
    assert "busy without progress" in server.state.stuck_processes(now_s)[0]
    server.beat = Beat(PID, now_s, now_s, 2, busy=True)
    assert server.state.is_ready(now_s)


def test_a_process_that_is_starting_is_not_stuck() -> None:
    assert Server(ready_s=None).state.is_ready(2 * SILENT_S)


def test_the_heartbeat_of_a_predecessor_does_not_count() -> None:
    server = Server(ready_s=10.0)
    server.beat = Beat(PID - 1, 70.0, 0.0, 500, busy=True)
    assert server.state.is_ready(10 + SILENT_S)
    assert not server.state.is_ready(11 + SILENT_S)


def test_the_report_lists_epochs_and_processes() -> None:
    server = Server()
    server.state.apply(msgspec.structs.replace(READY, visual_epochs=(1, 0)))
    server.beat = Beat(PID, 1.0, 0.5, 3, busy=True)
    report = server.state.report(2.0)
    assert report["status"] == "ok"
    assert report["epochs"] == {"engine": 2, "visual": [1, 0], "cache": 0}
    assert report["supervisor"] == {"pid": 9, "uptime_s": 2.0}
    assert report["processes"] == {
        "router-0": {
            "title": "router",
            "pid": PID,
            "state": "ready",
            "uptime_s": 2.0,
            "restarts": 3,
            "heartbeat_age_s": 1.0,
            "busy": True,
            "progress": 3,
            "without_progress_s": 1.5,
        }
    }
