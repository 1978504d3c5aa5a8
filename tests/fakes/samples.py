"""A metrics client that records samples and checks them against the table of metrics."""

from __future__ import annotations

from mmserve.metrics.names import METRICS


class Samples:
    """Use in place of a MetricsClient."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, float, tuple[str, ...]]] = []

    def add(self, name: str, value: float, *labels: str) -> None:
        assert len(labels) == len(METRICS[name].labels)
        self.recorded.append((name, value, labels))

    def add_later(self, name: str, value: float, *labels: str) -> None:
        self.add(name, value, *labels)

    def flush(self) -> None:
        return None

    def names(self) -> list[str]:
        return [name for name, _, _ in self.recorded]

    def total(self, name: str, *labels: str) -> float:
        return sum(value for each, value, found in self.recorded if (each, found) == (name, labels))
