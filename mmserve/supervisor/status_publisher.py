"""Publishes the server's phase, its epochs and process restarts to the other processes."""

from __future__ import annotations

from collections import Counter

from mmserve.ipc.channel import Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.reply import HttpInbound, ServerPhase
from mmserve.messages.status import HealthInbound, MetricBatch, MetricSample
from mmserve.supervisor.topology import Epoch, Member

_METRICS_LIMIT = 256


class StatusPublisher:
    """Sends to every HTTP worker, the health server and the metrics server."""

    def __init__(self, endpoints: Endpoints, http_workers: int) -> None:
        self._phases: list[Sender[ServerPhase]] = [
            Sender(endpoints.http(worker), HttpInbound) for worker in range(http_workers)
        ]
        self._phases.append(Sender(endpoints.health, HealthInbound))
        self._metrics: Sender[MetricBatch] = Sender(endpoints.metrics, MetricBatch, limit=_METRICS_LIMIT)
        self._epochs: Counter[Epoch] = Counter()

    def phase(self, phase: str, *, ready: bool, detail: str = "") -> None:
        """Send the server's phase, with the current epochs. Idempotent for the receivers."""
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

    def raise_epoch(self, epoch: Epoch) -> None:
        """A restarted part has lost its state. Takes effect with the next ``phase``."""
        self._epochs[epoch] += 1

    def died(self, member: Member) -> None:
        """Count the restart, and clear the process's gauges in the metrics server (a batch without samples)."""
        self._metrics.send(MetricBatch(process=member.name, samples=()))
        restarted = MetricSample("process_restarts", 1, (member.role.name,))
        self._metrics.send(MetricBatch(process="supervisor", samples=(restarted,)))

    def close(self) -> None:
        for sender in self._phases:
            sender.close()
        self._metrics.close()
