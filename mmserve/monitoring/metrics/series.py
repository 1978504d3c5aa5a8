"""Renders the metrics of all processes as Prometheus series, as the table in ``names`` says.

Counters and histograms add up over all processes, ended ones included. Gauges add up over those that run.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from mmserve.monitoring.metrics.names import METRICS, PREFIX, Metric, num_values
from mmserve.monitoring.metrics.store import Stored, read_all

Labels = tuple[str, ...]
Sums = defaultdict[str, dict[Labels, list[float]]]


class Series:
    """All series of the server, read at each scrape from the files in ``directory``. Thread-safe."""

    def __init__(self, directory: Path, table: Mapping[str, Metric] = METRICS) -> None:
        self._directory = directory
        self._table = table
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return prometheus_client.generate_latest(self.registry)

    def collect(self) -> Iterator[Family]:
        """Prometheus' interface of a collector."""
        sums = sums_of(read_all(self._directory), self._table)
        for name, metric in self._table.items():
            family = _family(name, metric, sums[name])
            if family.samples or metric.kind != "gauge":
                yield family


def sums_of(files: Iterable[Stored], table: Mapping[str, Metric] = METRICS) -> Sums:
    """Values of each series of each metric, over all processes."""
    sums: Sums = defaultdict(dict)
    for file in files:
        for (name, labels), values in file.values.items():
            metric = table.get(name)
            if metric is None or len(values) != num_values(metric):
                continue
            if metric.kind == "gauge" and (not file.live or math.isnan(values[0])):
                continue
            before = sums[name].get(labels, [0.0] * len(values))
            sums[name][labels] = [a + b for a, b in zip(before, values, strict=True)]
    for name, metric in table.items():
        if metric.kind != "gauge" and not metric.labels:
            # A rate needs the first sample as much as the others: such series begin at zero.
            sums[name].setdefault((), [0.0] * num_values(metric))
    return sums


def _family(name: str, metric: Metric, series: Mapping[Labels, list[float]]) -> Family:
    match metric.kind:
        case "counter":
            counter = CounterMetricFamily(PREFIX + name, metric.help, labels=metric.labels)
            for labels, (value,) in series.items():
                counter.add_metric(labels, value)
            return counter
        case "gauge":
            gauge = GaugeMetricFamily(PREFIX + name, metric.help, labels=metric.labels)
            for labels, (value,) in series.items():
                gauge.add_metric(labels, value)
            return gauge
        case "histogram":
            histogram = HistogramMetricFamily(PREFIX + name, metric.help, labels=metric.labels)
            bounds = [floatToGoString(bound) for bound in (*metric.buckets, math.inf)]  # type: ignore[no-untyped-call]
            for labels, (*counts, total) in series.items():
                histogram.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
            return histogram
