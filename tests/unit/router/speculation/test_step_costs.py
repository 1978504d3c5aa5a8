"""The learned time of a step by its rows."""

from __future__ import annotations

import pytest

from mmserve.router.speculation.step_costs import StepCosts


def known(*steps: tuple[int, float]) -> StepCosts:
    costs = StepCosts()
    for num_rows, seconds in steps:
        costs.observe(num_rows, seconds)
    return costs


def test_nothing_is_known_at_first() -> None:
    assert known((1, 0.0)).seconds(1, 5) == []


def test_more_rows_than_were_seen_are_taken_to_be_as_fast_as_the_most_that_were() -> None:
    costs = known((5, 0.02))
    assert costs.seconds(1) == costs.seconds(5) == costs.seconds(2000) == [0.02]
    assert known((5, 0.02), (2000, 0.9)).seconds(2000, 1) == [0.9, 0.9]


def test_times_between_those_of_two_classes_are_interpolated() -> None:
    costs = known((9, 0.02), (1, 0.01))
    assert costs.seconds(1, 8) == pytest.approx([0.01 + 0.00125 * number for number in range(9)])
    costs.observe(5, 0.018)
    assert costs.seconds(3, 4) == pytest.approx([0.014, 0.016, 0.018, 0.0185, 0.019])


def test_a_class_stands_for_the_rows_that_its_steps_had() -> None:
    costs = StepCosts()
    for _ in range(200):
        for num_rows in (1, 13, 16):
            costs.observe(num_rows, 0.01 * num_rows)
    assert costs.seconds(1, 13) == pytest.approx([0.01 * num_rows for num_rows in range(1, 15)], rel=0.1)


def test_the_first_steps_may_be_slow() -> None:
    assert known((1, 0.5), (1, 0.012), (1, 0.01)).seconds(1) == [0.01]


def test_times_follow_what_is_observed_and_not_one_slow_step() -> None:
    costs = known(*[(1, 0.01)] * 10)
    costs.observe(1, 5.0)
    assert costs.seconds(1)[0] < 0.0125
    for _ in range(100):
        costs.observe(1, 0.03)
    assert costs.seconds(1) == pytest.approx([0.03], rel=0.01)


def test_what_slows_all_steps_down_does_not_change_how_classes_compare() -> None:
    """Such as a longer context: only steps of one class are observed for a while."""
    costs = known(*[(1, 0.01), (4, 0.013)] * 100)
    for _ in range(60):
        costs.observe(4, 1.5 * 0.013)
    plain, _, _, drafted = costs.seconds(1, 3)
    assert drafted == pytest.approx(1.5 * 0.013, rel=0.01)
    assert plain == pytest.approx(1.5 * 0.01, rel=0.1)
    for _ in range(40):
        costs.observe(4, 1.5 * 0.013)
        costs.observe(1, 1.5 * 0.01)
    assert costs.seconds(1, 3)[::3] == pytest.approx([0.015, 0.0195], rel=0.02)


def test_a_class_that_is_slower_than_remembered_does_not_make_the_others_seem_slow() -> None:
    """It was not computed for long, and so was expected to be faster than it is."""
    costs = known(*[(32, 0.01), (40, 0.013)] * 10)
    for _ in range(700):
        costs.observe(32, 0.01)
    assert costs.seconds(40)[0] < 0.0118
    for _ in range(12):
        costs.observe(40, 0.013)
    assert costs.seconds(32) == pytest.approx([0.01], rel=0.04)
    assert costs.seconds(40) == pytest.approx([0.013], rel=0.03)


def test_a_class_that_seemed_slow_is_tried_again_after_a_while() -> None:
    costs = known((1, 0.01), (4, 0.05))
    for _ in range(1000):
        costs.observe(1, 0.01)
    assert costs.seconds(4)[0] < 0.02
    assert costs.seconds(1) == pytest.approx([0.01])
