"""Percentiles and means of a histogram's counts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.messages.server_state import Latency


def quantile(counts: Sequence[float], bounds: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` of all values are, estimated within its bucket by a straight line.

    ``counts``: of the values up to each of ``bounds``, and of those beyond, for which the last bound is the estimate.
    None if there are no values.
    """
    total = sum(counts)
    if total <= 0:
        return None
    rank, seen, lower = share * total, 0.0, 0.0
    for count, upper in zip(counts, bounds, strict=False):
        if count > 0 and seen + count >= rank:
            return lower + (upper - lower) * (rank - seen) / count
        seen, lower = seen + count, upper
    return bounds[-1]


def latency_of(values: Sequence[float], bounds: Sequence[float]) -> Latency:
    """``values``: a histogram's counts and then the sum, as ``metrics.store`` keeps them."""
    *counts, total_s = values
    count = sum(counts)
    if count <= 0:
        return Latency()
    return Latency(
        int(count),
        total_s / count,
        quantile(counts, bounds, 0.5),
        quantile(counts, bounds, 0.95),
        quantile(counts, bounds, 0.99),
    )
