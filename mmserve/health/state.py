"""Whether the server is live and ready, computed from heartbeats and phases. Pure: times are arguments."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.messages.reply import ServerPhase
from mmserve.messages.status import HealthInbound, Heartbeat

SILENT_S = 60.0
"""A process whose last heartbeat is older than this counts as stuck. Must exceed the longest step of a rank."""
STALLED_S = 120.0
"""A process that is busy without progress for longer than this counts as stuck, in spite of its heartbeats."""
DEAD_S = 600.0
"""If a process is stuck for longer than this, ``/live`` fails: only a restart of the whole server can help."""


@dataclass(frozen=True)
class ProcessHealth:
    """The last heartbeat of one process."""

    heartbeat_s: float
    progress: int
    busy: bool
    progress_s: float
    """When the process last made progress or was idle."""


class HealthState:
    """The server's phase and the last heartbeat of each process."""

    def __init__(self) -> None:
        self._phase = ServerPhase(phase="starting", ready=False)
        self._processes: dict[str, ProcessHealth] = {}

    def apply(self, message: HealthInbound, now_s: float) -> None:
        """Record a heartbeat or a phase."""
        match message:
            case ServerPhase():
                self._phase = message
            case Heartbeat(process=process, progress=progress, busy=busy):
                known = self._processes.get(process)
                # Being idle is no stall, and neither is a progress counter that restarted with its process.
                stalled = known is not None and known.busy and busy and known.progress == progress
                progress_s = known.progress_s if known is not None and stalled else now_s
                self._processes[process] = ProcessHealth(now_s, progress, busy, progress_s)

    def stuck_processes(self, now_s: float, *, silent_s: float = SILENT_S, stalled_s: float = STALLED_S) -> list[str]:
        """One line of text for each process that is stuck."""
        lines = []
        for name, health in sorted(self._processes.items()):
            if now_s - health.heartbeat_s > silent_s:
                lines.append(f"{name}: no heartbeat for {now_s - health.heartbeat_s:.0f} s")
            elif health.busy and now_s - health.progress_s > stalled_s:
                lines.append(f"{name}: busy without progress for {now_s - health.progress_s:.0f} s")
        return lines

    def is_live(self, now_s: float) -> bool:
        """False if only a restart of the whole server can help."""
        return not self.stuck_processes(now_s, silent_s=DEAD_S, stalled_s=DEAD_S)

    def is_ready(self, now_s: float) -> bool:
        """True if requests can be served."""
        return self._phase.ready and not self.stuck_processes(now_s)

    def report(self, now_s: float) -> dict[str, object]:
        """The JSON body of all probes."""
        phase = self._phase
        return {
            "status": "ok" if self.is_ready(now_s) else "unavailable",
            "phase": phase.phase,
            "detail": phase.detail,
            "reasons": [*([] if phase.ready else [f"phase is {phase.phase}"]), *self.stuck_processes(now_s)],
            "epochs": {"engine": phase.engine_epoch, "visual": list(phase.visual_epochs), "cache": phase.cache_epoch},
            "processes": {
                name: {
                    "heartbeat_age_s": round(now_s - health.heartbeat_s, 3),
                    "busy": health.busy,
                    "progress": health.progress,
                    "without_progress_s": round(now_s - health.progress_s, 3) if health.busy else 0.0,
                }
                for name, health in sorted(self._processes.items())
            },
        }
