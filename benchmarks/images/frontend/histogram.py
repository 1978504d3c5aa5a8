"""A server's own metrics between two scrapes of /metrics.

Quantiles of a histogram, interpolated as Prometheus does, and the growth of all sums.
"""

from __future__ import annotations

import urllib.request
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.parser import text_string_to_metric_families

Buckets = dict[float, float]
"""Upper bound -> cumulative count of observations up to it."""


def buckets(url: str, name: str) -> Buckets:
    """The buckets of ``name`` now."""
    return {float(labels["le"]): value for sample, labels, value in _samples(url) if sample == f"{name}_bucket"}


@contextmanager
def growth(url: str) -> Iterator[dict[str, float]]:
    """By how much each sample grows in the block, summed over its labels; filled on exit."""
    before, grown = _sums(url), dict[str, float]()
    yield grown
    grown |= {name: value - before.get(name, 0.0) for name, value in _sums(url).items()}


def _sums(url: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for name, _, value in _samples(url):
        found[name] += value
    return found


def _samples(url: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value)"""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield sample.name, sample.labels, sample.value


def quantile(before: Buckets, after: Buckets, q: float) -> float:
    """Quantile of the observations between the two scrapes. nan without observations; the last finite bound if the
    quantile is above it."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    total = max(counts.values(), default=0.0)
    low, below = 0.0, 0.0
    for bound, count in counts.items():
        if total and count >= q * total:
            return low if bound == float("inf") else low + (bound - low) * (q * total - below) / (count - below)
        low, below = bound, count
    return float("nan")
