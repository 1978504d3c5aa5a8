"""Process: what a server process is given. ``run(process)`` is the entry point of every server package.

Built by the supervisor's child module, or by a test.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mmserve.config.resolved.deployment import Deployment
from mmserve.ipc.arena import Arena
from mmserve.ipc.faults import NO_FAULTS, FaultPoint
from mmserve.ipc.links.endpoints import Endpoints

RETIRE = signal.SIGUSR2
"""Signal to an HTTP worker whose successor serves: accept no more connections, finish those that are open, and end."""


class Stop(BaseException):
    """Raised in a child's main thread by SIGTERM: synchronous servers unwind their ``with`` blocks and return.

    Servers that run an event loop install their own SIGTERM handler instead.
    """


def _silent_progress(done: int, total: int, what: str) -> None:
    return None


def _not_reported() -> None:
    return None


@dataclass(frozen=True)
class Process:
    """Deployment, identity and inherited resources of one server process."""

    deployment: Deployment
    role: str
    """cache_server | httpserver | visualserver | router | model_backend | metrics | health"""
    index: int
    """Worker or rank number within the role."""
    ready: Callable[[dict[str, object]], None]
    """Call once, when the process serves. The details are shown in the ready line."""
    progress: Callable[[int, int, str], None] = field(default=_silent_progress)
    """progress(done, total, unit) while loading weights: done and total in bytes."""
    accepting: Callable[[], None] = field(default=_not_reported)
    """Of an HTTP worker: call once, when it has been told that the server is ready."""
    arena: Arena | None = None
    rendezvous: Path | None = None
    """Of a process of the engine: a file in which the tensor-parallel ranks of one start find each other."""
    listen_fd: int | None = None
    """Inherited listening socket (httpserver, health)."""
    supervisor_pid: int = 0
    """Not always the parent's: a fork server may be that. 0: there is none, in a test."""

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(self.deployment.run_dir)

    def fault_point(self) -> FaultPoint:
        """Where the process's units of work begin. Call it once."""
        return FaultPoint(self.endpoints.fault(self.name)) if self.deployment.config.fault_injection else NO_FAULTS

    @property
    def name(self) -> str:
        """Unique within the server, e.g. ``model_backend-1``; used for heartbeats, metrics and leases."""
        return f"{self.role}-{self.index}"
