"""Samples of all processes -> Prometheus series, by the table in ``names``. No socket, no process.

Counters and histograms outlive the process that sent them. Gauges are kept per process and summed, and go with it.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family

from mmserve.messages.status import MetricBatch, MetricSample
from mmserve.metrics.names import METRICS, PREFIX, Metric

Labels = tuple[str, ...]
logger = logging.getLogger(__name__)


class Series:
    """All series of one server. Safe to render while samples come in."""

    def __init__(self, table: Mapping[str, Metric] = METRICS) -> None:
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=False)
        self._counters = {
            name: Counter(PREFIX + name, metric.help, metric.labels, registry=self.registry)
            for name, metric in table.items()
            if metric.kind == "counter"
        }
        self._histograms = {
            name: Histogram(PREFIX + name, metric.help, metric.labels, registry=self.registry, buckets=metric.buckets)
            for name, metric in table.items()
            if metric.kind == "histogram"
        }
        self._gauges = _Gauges({name: metric for name, metric in table.items() if metric.kind == "gauge"})
        self.registry.register(self._gauges)
        self._refused: set[str] = set()

    def apply(self, batch: MetricBatch) -> None:
        """Take in a batch; one without samples says that its process is gone. A wrong sample is dropped."""
        if not batch.samples:
            self._gauges.forget(batch.process)
        for sample in batch.samples:
            try:
                self._apply(batch.process, sample)
            except (KeyError, ValueError) as error:
                self._refuse(batch.process, sample.name, error)

    def _apply(self, process: str, sample: MetricSample) -> None:
        if (counter := self._counters.get(sample.name)) is not None:
            (counter.labels(*sample.labels) if sample.labels else counter).inc(sample.value)
        elif (histogram := self._histograms.get(sample.name)) is not None:
            (histogram.labels(*sample.labels) if sample.labels else histogram).observe(sample.value)
        else:
            self._gauges.set(process, sample)

    def _refuse(self, process: str, name: str, error: Exception) -> None:
        if name not in self._refused:
            self._refused.add(name)
            logger.warning("%s sent a sample of %s that is dropped: %r", process, name, error)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return prometheus_client.generate_latest(self.registry)


class _Gauges:
    """A collector: last value of each gauge by process, summed when asked."""

    def __init__(self, table: Mapping[str, Metric]) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._values: defaultdict[str, dict[tuple[str, Labels], float]] = defaultdict(dict)

    def set(self, process: str, sample: MetricSample) -> None:
        """Raises KeyError for an unknown name, ValueError for the wrong number of labels."""
        if len(self._table[sample.name].labels) != len(sample.labels):
            raise ValueError("wrong number of labels")
        with self._lock:
            self._values[process][sample.name, sample.labels] = sample.value

    def forget(self, process: str) -> None:
        with self._lock:
            self._values.pop(process, None)

    def collect(self) -> Iterator[Family]:
        sums: defaultdict[str, defaultdict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        with self._lock:
            for values in self._values.values():
                for (name, labels), value in values.items():
                    sums[name][labels] += value
        for name, metric in self._table.items():
            family = GaugeMetricFamily(PREFIX + name, metric.help, labels=metric.labels)
            for labels, value in sums[name].items():
                family.add_metric(labels, value)
            if family.samples:
                yield family
