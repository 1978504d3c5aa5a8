"""Percentiles that are estimated from a histogram's counts."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.messages.server_state import Latency
from mmserve.monitoring.metrics.distribution import latency_of, quantile

BOUNDS = (0.1, 0.5, 1.0, 5.0)


def histogram(values: list[float]) -> list[float]:
    counts = [0.0] * (len(BOUNDS) + 1)
    for value in values:
        counts[bisect_left(BOUNDS, value)] += 1
    return [*counts, sum(values)]


def test_values_are_spread_evenly_in_their_bucket() -> None:
    assert quantile([0, 4, 0, 0, 0], BOUNDS, 0.5) == pytest.approx(0.3)
    assert quantile([2, 2, 0, 0, 0], BOUNDS, 0.5) == pytest.approx(0.1)
    assert quantile([2, 2, 0, 0, 0], BOUNDS, 0.75) == pytest.approx(0.3)


def test_values_beyond_the_last_bound_count_as_it() -> None:
    assert quantile([0, 0, 0, 0, 3], BOUNDS, 0.5) == 5.0


def test_without_values_there_is_no_percentile() -> None:
    assert quantile([0] * 5, BOUNDS, 0.5) is None
    assert latency_of([0.0] * 6, BOUNDS) == Latency()


def test_the_mean_is_exact() -> None:
    found = latency_of(histogram([0.2, 0.4]), BOUNDS)
    assert (found.count, found.mean_s) == (2, pytest.approx(0.3))


@given(st.lists(st.floats(0.001, 4.9), min_size=1, max_size=50), st.floats(0.01, 0.99))
def test_an_estimate_is_in_the_bucket_of_the_true_value(values: list[float], share: float) -> None:
    *counts, _ = histogram(values)
    found = quantile(counts, BOUNDS, share)
    assert found is not None
    ordered = sorted(values)
    # The values with the ranks beside the one that was asked for: a bucket's edge may be between them.
    rank = share * len(values)
    low, high = ordered[max(0, int(rank) - 1)], ordered[min(len(values) - 1, int(rank))]
    lower = (0.0, *BOUNDS)[bisect_left(BOUNDS, low)]
    upper = BOUNDS[bisect_left(BOUNDS, high)]
    assert lower <= found <= upper


@given(st.lists(st.integers(0, 9), min_size=5, max_size=5).filter(any))
def test_percentiles_do_not_fall(counts: list[int]) -> None:
    found = [quantile(counts, BOUNDS, share / 10) or 0.0 for share in range(1, 10)]
    assert found == sorted(found)
