from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cluster.scale.autoscaling import Pressure, wanted


def _all(count: int, used: float, wait_s: float = 0.0) -> list[Pressure]:
    return [Pressure(used, wait_s)] * count


def test_full_slots_ask_for_as_many_as_bring_them_to_four_fifths() -> None:
    assert wanted(_all(4, 1.0), 4, 0, 1, 10) == 5
    assert wanted(_all(4, 0.8), 4, 0, 1, 10) == 4


def test_a_long_wait_asks_for_one_more_but_not_again_before_that_one_reports() -> None:
    assert wanted(_all(4, 0.4, 2.0), 4, 0, 1, 10) == 5
    assert wanted(_all(4, 0.4, 2.0), 5, 0, 1, 10) == 5


def test_half_empty_replicas_go_and_the_rest_is_not_full_then() -> None:
    assert wanted(_all(4, 0.25), 4, 0, 1, 10) == 2
    assert wanted(_all(2, 0.5), 2, 0, 1, 10) == 2


def test_to_zero_and_back() -> None:
    assert wanted(_all(1, 0.0), 1, 0, 0, 10) == 0
    assert wanted([], 0, 0, 0, 10) == 0
    assert wanted([], 0, 3, 0, 10) == 1
    assert wanted([], 1, 0, 0, 10) == 1, "one that starts is waited for"
    assert wanted(_all(1, 0.0), 1, 2, 0, 10) == 1
    assert wanted(_all(1, 0.0), 0, 3, 0, 10) == 1, "a report of the last one that ended is still there"


def test_a_burst_does_not_start_more_than_twice_as_many() -> None:
    assert wanted(_all(2, 30.0), 2, 0, 1, 100) == 4


@given(
    st.lists(st.builds(Pressure, st.floats(0, 50), st.floats(0, 50)), max_size=20),
    st.integers(0, 5),
    st.integers(0, 9),
    st.integers(0, 4),
    st.integers(0, 20),
)
def test_the_limits_hold_and_a_constant_load_comes_to_rest(
    pressures: list[Pressure], starting: int, queued: int, least: int, room: int
) -> None:
    most = max(1, least + room)
    count = wanted(pressures, len(pressures) + starting, queued, least, most)
    assert least <= count <= most
    used = sum(each.used for each in pressures)
    seen = []
    for _ in range(40):
        if not count:
            break
        seen.append(count)
        count = wanted(_all(count, used / count), count, 0, least, most)
    assert len(set(seen[10:])) <= 1
