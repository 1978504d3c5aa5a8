"""Messages to the health server."""

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
