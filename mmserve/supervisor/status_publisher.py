"""Tells the other processes what state the server is in: phase and epochs, and who has died. Decides nothing."""

from __future__ import annotations

from collections import Counter

from mmserve.ipc.channel import Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.reply import HttpInbound, ServerPhase
from mmserve.messages.status import HealthInbound, MetricBatch, MetricSample
from mmserve.supervisor.topology import Epoch, Member

_METRICS_LIMIT = 256


class StatusPublisher:
    """Pushes to every HTTP worker, to the health server and to the metrics server."""

    def __init__(self, endpoints: Endpoints, http_workers: int) -> None:
        self._phases: list[Sender[ServerPhase]] = [
            Sender(endpoints.http(worker), HttpInbound) for worker in range(http_workers)
        ]
        self._phases.append(Sender(endpoints.health, HealthInbound))
        self._metrics: Sender[MetricBatch] = Sender(endpoints.metrics, MetricBatch, limit=_METRICS_LIMIT)
        self._epochs: Counter[Epoch] = Counter()

    def phase(self, phase: str, *, ready: bool, detail: str = "") -> None:
        """Say in which phase the server is; saying it again is harmless."""
        message = ServerPhase(
            phase=phase,
            ready=ready,
            detail=detail,
            engine_epoch=self._epochs["engine"],
            visual_epoch=self._epochs["visual"],
            cache_epoch=self._epochs["cache"],
        )
        for sender in self._phases:
            sender.send(message)

    def lost(self, epoch: Epoch) -> None:
        """From the next ``phase`` on: what that part held is gone."""
        self._epochs[epoch] += 1

    def died(self, member: Member) -> None:
        """Count the restart, and have the metrics server forget the process's gauges (a batch without samples)."""
        self._metrics.send(MetricBatch(process=member.name, samples=()))
        restarted = MetricSample("process_restarts", 1, (member.role.name,))
        self._metrics.send(MetricBatch(process="supervisor", samples=(restarted,)))

    def close(self) -> None:
        for sender in self._phases:
            sender.close()
        self._metrics.close()
