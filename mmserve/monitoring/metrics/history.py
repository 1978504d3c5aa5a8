"""The last hour of a few counters and histograms, as their values at regular times. Pure: times are arguments.

A value at a time is the sum since the server's start. So the difference of any two is what happened between them, and
an hour of histograms costs some 2 MB, however many requests there were.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mmserve.monitoring.metrics.names import METRICS, Metric, num_values

INTERVAL_S = 5.0
NUM_SAMPLES = 721
"""An hour, and the sample that it begins with."""
Sums = Mapping[str, Mapping[tuple[str, ...], Sequence[float]]]
"""Metric -> label values -> values, over all processes."""


class Column(NamedTuple):
    """A metric, summed over its series, or over those that have all of these label values."""

    metric: str
    labels: frozenset[str] = frozenset()


Values = Mapping[Column, Sequence[float]]


class Span(NamedTuple):
    """What happened in the ``seconds`` before ``time_s``, a time of the clock."""

    time_s: float
    seconds: float
    values: Values


class _Sample(NamedTuple):
    time_s: float
    at_s: float
    values: array[float]


class History:
    """Samples of ``columns``, the latest ``num_samples`` of them. Not thread-safe."""

    def __init__(
        self, columns: Sequence[Column], table: Mapping[str, Metric] = METRICS, num_samples: int = NUM_SAMPLES
    ) -> None:
        self._columns = {column: num_values(table[column.metric]) for column in columns}
        self._samples: deque[_Sample] = deque(maxlen=num_samples)

    def add(self, time_s: float, at_s: float, sums: Sums) -> None:
        """``time_s``: of the clock. ``at_s``: the same moment by the monotonic clock, later than the last one."""
        self._samples.append(self._sample(time_s, at_s, sums))

    def spans(self, after_s: float) -> Iterator[Span]:
        """Between each sample and the next, those that ended after the time of the clock."""
        before: _Sample | None = None
        for sample in self._samples:
            if before is not None and sample.time_s > after_s:
                yield self._between(before, sample)
            before = sample

    def until(self, time_s: float, at_s: float, sums: Sums) -> Span:
        """Between the oldest sample and now."""
        now = self._sample(time_s, at_s, sums)
        return self._between(self._samples[0] if self._samples else now, now)

    def _sample(self, time_s: float, at_s: float, sums: Sums) -> _Sample:
        values = array("d")
        for column, count in self._columns.items():
            total = [0.0] * count
            for labels, series in sums.get(column.metric, {}).items():
                if column.labels.issubset(labels):
                    total = [a + b for a, b in zip(total, series, strict=True)]
            values.extend(total)
        return _Sample(time_s, at_s, values)

    def _between(self, first: _Sample, last: _Sample) -> Span:
        # A sum falls only if a file of metrics was damaged.
        differences = [max(0.0, after - before) for before, after in zip(first.values, last.values, strict=True)]
        values: dict[Column, Sequence[float]] = {}
        at = 0
        for column, count in self._columns.items():
            values[column] = differences[at : at + count]
            at += count
        return Span(last.time_s, last.at_s - first.at_s, values)
