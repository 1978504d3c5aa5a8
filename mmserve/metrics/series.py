"""Aggregates samples of all processes into Prometheus series, as the table in ``names`` says.

Counters and histograms are kept when the process that sent them ends. Gauges are kept per process, summed when scraped,
and removed when the process ends.
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
    """All series of the server. ``render`` may run while another thread calls ``apply``."""

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
        self._warned: set[str] = set()
        """Names of metrics with an invalid sample; each is logged once."""

    def apply(self, batch: MetricBatch) -> None:
        """Add a batch. An empty batch means that its process has ended. An invalid sample is dropped."""
        if not batch.samples:
            self._gauges.remove_process(batch.process)
        for sample in batch.samples:
            try:
                self._apply(batch.process, sample)
            except (KeyError, ValueError) as error:
                self._warn(batch.process, sample.name, error)

    def _apply(self, process: str, sample: MetricSample) -> None:
        if (counter := self._counters.get(sample.name)) is not None:
            (counter.labels(*sample.labels) if sample.labels else counter).inc(sample.value)
        elif (histogram := self._histograms.get(sample.name)) is not None:
            (histogram.labels(*sample.labels) if sample.labels else histogram).observe(sample.value)
        else:
            self._gauges.set(process, sample)

    def _warn(self, process: str, name: str, error: Exception) -> None:
        if name not in self._warned:
            self._warned.add(name)
            logger.warning("%s sent a sample of %s that is dropped: %r", process, name, error)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return prometheus_client.generate_latest(self.registry)


class _Gauges:
    """Prometheus collector of gauges: the sum of the processes' last values. Thread-safe."""

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

    def remove_process(self, process: str) -> None:
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
