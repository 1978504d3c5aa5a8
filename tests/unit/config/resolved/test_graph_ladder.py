"""Which numbers of rows are captured, and which of them a step takes."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mmserve.config.resolved.graph_ladder import ladder, rung_of


def test_the_ladder_ends_at_the_number_of_slots() -> None:
    assert ladder(256) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
    assert ladder(100) == (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 100)
    assert ladder(1) == (1,)


@pytest.mark.parametrize("slots", [1, 2, 3, 16, 17, 23, 24, 25, 128, 4096])
def test_steps_are_small(slots: int) -> None:
    rungs = ladder(slots)
    assert rungs[-1] == slots
    assert all(below < above <= 2 * below for below, above in pairwise(rungs))
    assert all(above <= 1.5 * below for below, above in pairwise(rungs) if below >= 16)


def test_a_step_takes_the_smallest_that_has_room() -> None:
    rungs = ladder(20)
    assert [rung_of(rows, rungs) for rows in (1, 2, 3, 16, 17, 20, 21)] == [1, 2, 4, 16, 20, 20, None]
