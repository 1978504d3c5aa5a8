"""Counts the metrics of one process, in the memory that it shares with the metrics server."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections.abc import Mapping

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.metrics.names import METRICS, Metric, num_values
from mmserve.monitoring.metrics.store import Key, MetricsFile
from mmserve.runtime.byte_budget import ByteBudget

logger = logging.getLogger(__name__)


class MetricsClient:
    """The metrics of one process. Not thread-safe. Metric names are those of ``metrics.names``.

    A sample is in the shared memory when ``add`` returns: it is not lost, whatever happens to any process.
    """

    def __init__(self, endpoints: Endpoints, process: str, table: Mapping[str, Metric] = METRICS) -> None:
        self._process = process
        self._table = table
        self._file = MetricsFile(endpoints.metrics, process)
        self._values = self._file.values
        self._slots: dict[Key, tuple[Metric, int] | None] = {}
        """Of the series that were used: metric and place of the first value, or None if samples are dropped."""
        self._warned: set[str] = set()
        self._forget_gauges()

    def add(self, name: str, value: float, *labels: str) -> None:
        """Add to a counter, set a gauge, or observe by a histogram. An invalid sample is dropped; the log names it."""
        try:
            slot = self._slots[name, labels]
        except KeyError:
            slot = self._new_slot(name, labels)
        if slot is None:
            return
        metric, at = slot
        if metric.kind == "gauge":
            self._values[at] = value
        elif metric.kind == "histogram":
            self._values[at + bisect_left(metric.buckets, value)] += 1
            self._values[at + len(metric.buckets) + 1] += value
        elif value >= 0:
            self._values[at] += value
        else:
            self._warn(name, "a counter does not fall")

    def add_budget(self, name: str, budget: ByteBudget) -> None:
        """Set the three gauges of a budget, labelled ``name``."""
        self.add("budget_limit_bytes", budget.limit_nbytes, name)
        self.add("budget_used_bytes", budget.used_nbytes, name)
        self.add("budget_peak_bytes", budget.peak_nbytes, name)

    def close(self) -> None:
        """The counts stay for the process's successor and for the metrics server."""
        self._file.close()

    def _new_slot(self, name: str, labels: tuple[str, ...]) -> tuple[Metric, int] | None:
        metric, at = self._table.get(name), None
        if metric is None or len(metric.labels) != len(labels):
            self._warn(name, "no such metric" if metric is None else f"its labels are {metric.labels}, not {labels}")
        elif (at := self._file.slot((name, labels), num_values(metric))) is None:
            self._warn(name, "there are too many series")
        if metric is None or at is None:
            # Not remembered: the number of wrong label values has no limit.
            return None
        slot = self._slots[name, labels] = metric, at
        return slot

    def _forget_gauges(self) -> None:
        """Gauges of a predecessor are not current. NaN marks them as unset."""
        for (name, _), (at, _) in self._file.slots.items():
            if self._table[name].kind == "gauge":
                self._values[at] = math.nan

    def _warn(self, name: str, reason: str) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("%s: a sample of the metric %s is dropped: %s", self._process, name, reason)
