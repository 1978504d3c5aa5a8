"""The last hour of counters and histograms, as differences of sums."""

from __future__ import annotations

import math

from mmserve.monitoring.metrics.history import Column, History, Span
from mmserve.monitoring.metrics.names import Metric

TABLE = {
    "tokens": Metric("counter", "Tokens"),
    "took": Metric("histogram", "Took", ("media", "alloc"), (1.0, 2.0)),
}
TOKENS, TOOK = Column("tokens"), Column("took")
V1, V1_IMAGE = Column("took", frozenset({"v1"})), Column("took", frozenset({"v1", "image"}))


def history(num_samples: int = 4) -> History:
    return History((TOKENS, TOOK, V1, V1_IMAGE), TABLE, num_samples)


def sums(tokens: float, **took: tuple[float, ...]) -> dict[str, dict[tuple[str, ...], tuple[float, ...]]]:
    return {"tokens": {(): (tokens,)}, "took": {tuple(labels.split("_")): each for labels, each in took.items()}}


def tokens_of(spans: list[Span]) -> list[tuple[float, float, float]]:
    return [(span.time_s, span.seconds, span.values[TOKENS][0]) for span in spans]


def test_a_span_has_what_was_added_between_two_samples() -> None:
    kept = history()
    for second, tokens in ((0, 100), (5, 103), (11, 103)):
        kept.add(1000 + second, second, sums(tokens))
    assert tokens_of([*kept.spans(-math.inf)]) == [(1005, 5, 3), (1011, 6, 0)]
    assert tokens_of([*kept.spans(1005)]) == [(1011, 6, 0)]
    assert not [*kept.spans(1011)]


def test_series_add_up_over_the_labels_that_a_column_leaves_open() -> None:
    kept = history()
    kept.add(0, 0, sums(0))
    took = {"text_v1": (1.0, 0.0, 0.0, 0.5), "image_v1": (0.0, 2.0, 0.0, 3.0), "image_v2": (0.0, 0.0, 1.0, 9.0)}
    kept.add(5, 5, sums(0, **took))
    (span,) = kept.spans(-math.inf)
    assert [*span.values[TOOK]] == [1, 2, 1, 12.5]
    assert [*span.values[V1]] == [1, 2, 0, 3.5]
    assert [*span.values[V1_IMAGE]] == [0, 2, 0, 3]


def test_only_the_latest_samples_are_kept() -> None:
    kept = history(num_samples=3)
    for second in range(10):
        kept.add(second, second, sums(second * second))
    assert tokens_of([*kept.spans(-math.inf)]) == [(8, 1, 15), (9, 1, 17)]
    until = kept.until(9.5, 9.5, sums(100))
    assert (until.seconds, until.values[TOKENS][0]) == (2.5, 100 - 49)


def test_before_the_first_sample_nothing_has_happened() -> None:
    until = history().until(5, 5, sums(100))
    assert (until.seconds, [*until.values[TOKENS]], [*until.values[TOOK]]) == (0, [0], [0, 0, 0, 0])


def test_a_sum_that_fell_counts_as_nothing() -> None:
    kept = history()
    kept.add(0, 0, sums(50))
    kept.add(5, 5, sums(20))
    assert tokens_of([*kept.spans(-math.inf)]) == [(5, 5, 0)]
