"""Samples in tests: a metrics client that records them, and those that real processes have counted."""

from __future__ import annotations

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.metrics.names import METRICS
from mmserve.monitoring.metrics.store import read_all


class Samples:
    """Use in place of a MetricsClient."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, float, tuple[str, ...]]] = []

    def add(self, name: str, value: float, *labels: str) -> None:
        assert len(labels) == len(METRICS[name].labels)
        self.recorded.append((name, value, labels))

    def names(self) -> list[str]:
        return [name for name, _, _ in self.recorded]

    def total(self, name: str, *labels: str) -> float:
        return sum(value for each, value, found in self.recorded if (each, found) == (name, labels))


def counted(endpoints: Endpoints) -> dict[tuple[str, ...], float]:
    """(name, *labels) -> what the processes of a server have counted: value of a counter or gauge, sum of a histogram.

    Samples of metrics that are not in the table fail the test.
    """
    sums: dict[tuple[str, ...], float] = {}
    for stored in read_all(endpoints.metrics):
        for (name, labels), values in stored.values.items():
            assert len(METRICS[name].labels) == len(labels), name
            sums[name, *labels] = sums.get((name, *labels), 0.0) + values[-1]
    return sums
