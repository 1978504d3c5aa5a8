"""Heartbeats and phases -> is this server alive, is it ready, and if not, why. Pure: times are given."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.messages.reply import ServerPhase
from mmserve.messages.status import HealthInbound, Heartbeat

SILENT_S = 60.0
"""A process that has sent heartbeats and then none for so long is taken for stuck; a long step is no heartbeat."""
STALLED_S = 120.0
"""So long busy without progress is a stall, even with heartbeats."""
DEAD_S = 600.0
"""Stuck for so long: only a restart of the whole server can help, ``/live`` says so."""


@dataclass(frozen=True)
class ProcessHealth:
    """What one process last said, and since when it has made no progress while busy."""

    beat_s: float
    progress: int
    busy: bool
    moved_s: float


class HealthState:
    """State of health, from messages."""

    def __init__(self) -> None:
        self._phase = ServerPhase(phase="starting", ready=False)
        self._processes: dict[str, ProcessHealth] = {}

    def apply(self, message: HealthInbound, now_s: float) -> None:
        """Take in a heartbeat or a phase."""
        match message:
            case ServerPhase():
                self._phase = message
            case Heartbeat(process=process, progress=progress, busy=busy):
                known = self._processes.get(process)
                # EvictionQueue is no stall, nor is a count that starts again with its process.
                waits = known is not None and known.busy and busy and known.progress == progress
                moved_s = known.moved_s if known is not None and waits else now_s
                self._processes[process] = ProcessHealth(now_s, progress, busy, moved_s)

    def troubles(self, now_s: float, *, silent_s: float = SILENT_S, stalled_s: float = STALLED_S) -> list[str]:
        """One line for each process that is stuck."""
        found = []
        for name, vital in sorted(self._processes.items()):
            if now_s - vital.beat_s > silent_s:
                found.append(f"{name}: no heartbeat for {now_s - vital.beat_s:.0f} s")
            elif vital.busy and now_s - vital.moved_s > stalled_s:
                found.append(f"{name}: busy without progress for {now_s - vital.moved_s:.0f} s")
        return found

    def is_live(self, now_s: float) -> bool:
        """False only when waiting longer cannot help."""
        return not self.troubles(now_s, silent_s=DEAD_S, stalled_s=DEAD_S)

    def is_ready(self, now_s: float) -> bool:
        """Could a request succeed now?"""
        return self._phase.ready and not self.troubles(now_s)

    def report(self, now_s: float) -> dict[str, object]:
        """Everything, for ``/health``."""
        phase = self._phase
        return {
            "status": "ok" if self.is_ready(now_s) else "unavailable",
            "phase": phase.phase,
            "detail": phase.detail,
            "reasons": [*([] if phase.ready else [f"phase is {phase.phase}"]), *self.troubles(now_s)],
            "epochs": {"engine": phase.engine_epoch, "visual": phase.visual_epoch, "cache": phase.cache_epoch},
            "processes": {
                name: {
                    "heartbeat_age_s": round(now_s - vital.beat_s, 3),
                    "busy": vital.busy,
                    "progress": vital.progress,
                    "without_progress_s": round(now_s - vital.moved_s, 3) if vital.busy else 0.0,
                }
                for name, vital in sorted(self._processes.items())
            },
        }
