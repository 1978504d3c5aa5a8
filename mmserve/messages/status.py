"""Messages to the health server, and its report."""

from __future__ import annotations

import msgspec

from mmserve.messages.reply import ServerPhase


class ProcessRow(msgspec.Struct, frozen=True, array_like=True):
    """One process of the server. Times are of the monotonic clock, in seconds."""

    name: str
    """As in heartbeats and metrics: ``model_backend-1``."""
    title: str
    """As in logs: ``model_backend rank 1``."""
    group: str
    """Processes of one group restart together."""
    pid: int
    """0: it does not run."""
    started_s: float
    ready_s: float | None
    """None: it is starting."""
    restarts: int


class ProcessTable(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="processes"):
    """All processes but the supervisor, from the supervisor, after every change."""

    supervisor_pid: int
    started_s: float
    """When the supervisor started, of the monotonic clock."""
    processes: tuple[ProcessRow, ...]


HealthInbound = ProcessTable | ServerPhase


class SupervisorReport(msgspec.Struct, frozen=True):
    """Of the health server's report."""

    pid: int
    uptime_s: float


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process in the health server's report."""

    title: str
    pid: int
    state: str
    """gone | starting | ready"""
    uptime_s: float
    restarts: int
    heartbeat_age_s: float | None
    busy: bool


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """What other processes read of the health server's report, which has more."""

    phase: str
    detail: str
    reasons: tuple[str, ...]
    supervisor: SupervisorReport
    processes: dict[str, ProcessReport]
