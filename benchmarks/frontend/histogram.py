"""Quantiles of a server's own histogram between two scrapes of /metrics, interpolated as Prometheus does."""

from __future__ import annotations

import urllib.request

from prometheus_client.parser import text_string_to_metric_families

Buckets = dict[float, float]
"""Upper bound -> cumulative count of observations up to it."""


def buckets(url: str, name: str) -> Buckets:
    """The buckets of ``name`` now."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"{name}_bucket"
    }


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
