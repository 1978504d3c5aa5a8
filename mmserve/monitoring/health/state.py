"""Whether the server is live and ready, computed from phase, processes and heartbeats. Pure: times are arguments."""

from __future__ import annotations

from collections.abc import Callable

from mmserve.messages.reply import ServerPhase
from mmserve.messages.status import HealthInbound, ProcessRow, ProcessTable
from mmserve.monitoring.health.heartbeat import Beat
from mmserve.monitoring.health.stuck import Watched, stuck_processes

SILENT_S = 60.0
"""A process whose last heartbeat is older than this makes the server unready. The supervisor kills it earlier, unless
that is switched off (--stuck-timeout 0)."""
STALLED_S = 120.0
"""The same for a process that is busy without progress, in spite of its heartbeats."""
DEAD_S = 600.0
"""If a process is stuck for longer than this, ``/live`` fails: only a restart of the whole server can help."""


class HealthState:
    """The server's phase and processes, as the supervisor last sent them. ``beat_of`` reads a process's heartbeat."""

    def __init__(self, beat_of: Callable[[str], Beat | None]) -> None:
        self._beat_of = beat_of
        self._phase = ServerPhase(phase="starting", ready=False)
        self._table = ProcessTable(supervisor_pid=0, started_s=0.0, processes=())

    def apply(self, message: HealthInbound) -> None:
        """Record a phase or a table of processes."""
        match message:
            case ServerPhase():
                self._phase = message
            case ProcessTable():
                self._table = message

    def stuck_processes(self, now_s: float, *, silent_s: float = SILENT_S, stalled_s: float = STALLED_S) -> list[str]:
        """One line of text for each process that is stuck."""
        watched = [
            Watched(row.name, row.group, row.ready_s, self._beat(row))
            for row in self._table.processes
            if row.ready_s is not None
        ]
        stuck = stuck_processes(watched, lambda since_s: now_s - since_s, silent_s=silent_s, stalled_s=stalled_s)
        return [f"{name}: {reason}" for name, reason in sorted(stuck.items())]

    def is_live(self, now_s: float) -> bool:
        """False if only a restart of the whole server can help."""
        return not self.stuck_processes(now_s, silent_s=DEAD_S, stalled_s=DEAD_S)

    def is_ready(self, now_s: float) -> bool:
        """True if requests can be served."""
        return self._phase.ready and not self.stuck_processes(now_s)

    def report(self, now_s: float) -> dict[str, object]:
        """The JSON body of all probes."""
        phase, stuck = self._phase, self.stuck_processes(now_s)
        return {
            "status": "ok" if phase.ready and not stuck else "unavailable",
            "phase": phase.phase,
            "detail": phase.detail,
            "reasons": [*([] if phase.ready else [f"phase is {phase.phase}"]), *stuck],
            "epochs": {"engine": phase.engine_epoch, "visual": list(phase.visual_epochs), "cache": phase.cache_epoch},
            "supervisor": {"pid": self._table.supervisor_pid, "uptime_s": round(now_s - self._table.started_s, 3)},
            "processes": {row.name: self._process(row, now_s) for row in self._table.processes},
        }

    def _process(self, row: ProcessRow, now_s: float) -> dict[str, object]:
        beat = self._beat(row)
        return {
            "title": row.title,
            "pid": row.pid,
            "state": "gone" if not row.pid else "starting" if row.ready_s is None else "ready",
            "uptime_s": round(now_s - row.started_s, 3) if row.pid else 0.0,
            "restarts": row.restarts,
            "heartbeat_age_s": round(now_s - beat.beat_s, 3) if beat else None,
            "busy": bool(beat and beat.busy),
            "progress": beat.progress if beat else 0,
            "without_progress_s": round(now_s - beat.progress_s, 3) if beat and beat.busy else 0.0,
        }

    def _beat(self, row: ProcessRow) -> Beat | None:
        """The process's last heartbeat. One of its predecessor, which was killed, does not count."""
        beat = self._beat_of(row.name)
        return beat if beat and beat.pid == row.pid else None
