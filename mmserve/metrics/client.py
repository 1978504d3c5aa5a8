"""Sends metric samples to the metrics server in batches. Batches are dropped if the server does not keep up."""

from __future__ import annotations

import time

from mmserve.ipc.channel import Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.status import MetricBatch, MetricSample
from mmserve.runtime.byte_budget import ByteBudget

_FLUSH_AFTER_S = 0.05
_FLUSH_SAMPLES = 200
_UNSENT_LIMIT = 256


class MetricsClient:
    """Collects the samples of one process. Not thread-safe. Metric names are those of ``metrics.names``."""

    def __init__(self, endpoints: Endpoints, process: str) -> None:
        self._process = process
        self._sender: Sender[MetricBatch] = Sender(endpoints.metrics, MetricBatch, limit=_UNSENT_LIMIT)
        self._samples: list[MetricSample] = []
        self._flushed_s = 0.0

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add a sample, and send the batch if it is large or old enough."""
        self.add_later(name, value, *labels)
        if len(self._samples) >= _FLUSH_SAMPLES or time.monotonic() - self._flushed_s > _FLUSH_AFTER_S:
            self.flush()

    def add_later(self, name: str, value: float, *labels: str) -> None:
        """Add a sample without sending; it goes with the next ``add`` or ``flush``."""
        self._samples.append(MetricSample(name, value, labels))

    def add_budget(self, name: str, budget: ByteBudget) -> None:
        """Set the three gauges of a budget, labelled ``name``."""
        self.add("budget_limit_bytes", budget.limit_nbytes, name)
        self.add("budget_used_bytes", budget.used_nbytes, name)
        self.add("budget_peak_bytes", budget.peak_nbytes, name)

    def flush(self) -> None:
        """Send all collected samples. Main loops call this before they wait."""
        if self._samples:
            self._sender.send(MetricBatch(process=self._process, samples=tuple(self._samples)))
            self._samples.clear()
        self._flushed_s = time.monotonic()

    def close(self) -> None:
        self.flush()
        self._sender.close(linger_ms=100)
