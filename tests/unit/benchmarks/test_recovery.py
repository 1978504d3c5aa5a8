from __future__ import annotations

import math

import pytest

from benchmarks.nodes.recovery import recovery


def _pieces(*spans: tuple[float, float, int]) -> list[float]:
    """From, until, how many a second."""
    return [
        begun + number / rate for begun, until, rate in spans for number in range(round((until - begun) * rate)) if rate
    ]


def test_a_load_that_goes_on_needs_no_time() -> None:
    assert recovery(_pieces((0, 20, 100)), 0, 5, 20) == (0.0, pytest.approx(1, abs=0.01))


def test_a_pause_counts_until_the_rate_is_back() -> None:
    after_s, least = recovery(_pieces((0, 6, 100), (9, 20, 100)), 0, 5, 20)
    assert after_s == pytest.approx(3.9, abs=0.11), "1 s until the pause, which is 3 s, but for a tenth of a window"
    assert least == 0


def test_a_second_fall_counts_and_more_than_before_does_not() -> None:
    after_s, least = recovery(_pieces((0, 5, 100), (5, 9, 150), (9, 12, 60), (12, 20, 120)), 0, 5, 20)
    assert after_s == pytest.approx(6, abs=0.3)
    assert least == pytest.approx(0.6, abs=0.02)


def test_a_load_that_ends_below_is_not_back() -> None:
    assert recovery(_pieces((0, 5, 100), (5, 20, 80)), 0, 5, 20).after_s == math.inf
