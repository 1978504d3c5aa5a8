"""Publishes the server's phase, its epochs, its processes and their restarts to the other processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from mmserve.ipc.links.channel import Sender
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.http_links import HttpLinks
from mmserve.messages.reply import ServerPhase
from mmserve.messages.request import EngineInbound, WorkerDied
from mmserve.messages.status import HealthInbound, ProcessTable
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.supervisor.topology import Epoch, Member


class Publisher(Protocol):
    """Who is told what the supervisor knows."""

    def phase(self, phase: str, http_workers: Iterable[Member], *, ready: bool, detail: str = "") -> None:
        """The server's phase has changed."""

    def processes(self, table: ProcessTable) -> None:
        """The processes have changed."""

    def raise_epoch(self, member: Member) -> None:
        """The part to which ``member`` belongs has restarted."""

    def died(self, member: Member) -> None:
        """A process is started again."""


class NoStatus:
    """Of a node that has ranks alone: nobody listens."""

    def phase(self, phase: str, http_workers: Iterable[Member], *, ready: bool, detail: str = "") -> None:
        """Tells nobody."""

    def processes(self, table: ProcessTable) -> None:
        """Tells nobody."""

    def raise_epoch(self, member: Member) -> None:
        """Tells nobody."""

    def died(self, member: Member) -> None:
        """Tells nobody."""


class StatusPublisher:
    """Sends to every HTTP worker, the health server, the router and visual servers; counts restarts in the metrics."""

    def __init__(self, endpoints: Endpoints, visual_workers: int) -> None:
        self._endpoints = endpoints
        self._http = HttpLinks(endpoints)
        self._health: Sender[HealthInbound] = Sender(endpoints.health, HealthInbound)
        self._metrics = MetricsClient(endpoints, "supervisor")
        self._engine: list[Sender[EngineInbound]] = [
            Sender(endpoint, EngineInbound)
            for endpoint in (endpoints.router, *(endpoints.visual(worker) for worker in range(visual_workers)))
        ]
        self._visual_workers = visual_workers
        self._epochs: Counter[tuple[Epoch, int]] = Counter()
        """By part and, for visual servers, index of the process; other parts restart as a whole and have index 0."""

    def phase(self, phase: str, http_workers: Iterable[Member], *, ready: bool, detail: str = "") -> None:
        """Send the server's phase, with the current epochs. Idempotent for the receivers.

        ``http_workers``: those that run or are starting.
        """
        message = ServerPhase(
            phase=phase,
            ready=ready,
            detail=detail,
            engine_epoch=self._epochs["engine", 0],
            visual_epochs=tuple(self._epochs["visual", index] for index in range(self._visual_workers)),
            cache_epoch=self._epochs["cache", 0],
        )
        for worker in http_workers:
            self._http.send(worker.index, message)
        self._health.send(message)

    def processes(self, table: ProcessTable) -> None:
        """Send the table of processes to the health server."""
        self._health.send(table)

    def raise_epoch(self, member: Member) -> None:
        """The restarted part to which ``member`` belongs has lost its state. Takes effect with the next ``phase``."""
        epoch = member.role.epoch
        self._epochs[epoch, member.index if epoch == "visual" else 0] += 1

    def died(self, member: Member) -> None:
        """Count the restart. The sequences of an HTTP worker are ended in the router and the visual servers."""
        if member.role.listens == "http":
            self._http.drop(member.index)
            # With it there, the requests of all workers would count as missing: it may have no successor.
            self._endpoints.requests_http(member.index).unlink(missing_ok=True)
            died = WorkerDied(worker=member.index, died_s=time.monotonic())
            for sender in self._engine:
                sender.send(died)
        self._metrics.add("process_restarts", 1, member.role.name)

    def close(self) -> None:
        self._http.close()
        for sender in self._engine:
            sender.close()
        self._health.close()
        self._metrics.close()
