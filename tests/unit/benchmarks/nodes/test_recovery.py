from __future__ import annotations

import math

import pytest

from benchmarks.nodes.recovery import recovery, undisturbed


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


def test_a_load_that_is_uneven_by_itself_need_not_be_even_after_a_fault() -> None:
    uneven = [(at, at + 2, 120 if at % 4 else 80) for at in range(0, 20, 2)]
    enough = undisturbed(_pieces(*uneven), 0, 20)
    assert enough == pytest.approx(0.8, abs=0.02)
    assert (
        recovery(_pieces(*uneven, (20, 24, 40), *((20 + a, 20 + b, n) for a, b, n in uneven[2:])), 0, 20, 40).after_s
        > 15
    )
    again = _pieces(*uneven, (20, 24, 40), *((20 + a, 20 + b, n) for a, b, n in uneven[2:]))
    assert recovery(again, 0, 20, 40, enough - 0.02).after_s == pytest.approx(4, abs=1.2)
    assert undisturbed(_pieces((0, 20, 100)), 0, 20) == 0.9
