"""A way is chosen only if it is clearly faster than the default, all the time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mmserve.model_backend.platforms.cpu.ways import measure
from mmserve.model_backend.platforms.cpu.ways.candidates import Way

DEFAULT, OTHER, THIRD = WAYS = [Way(0, 32, 1), Way(1, 32, 1), Way(2, 32, 1)]


def test_the_fastest_is_chosen_with_what_it_saves() -> None:
    way, gain = measure.decide(WAYS, [[10.0, 9.0, 8.0]] * 6, 0.05)
    assert (way, gain) == (THIRD, pytest.approx(0.2))


def test_the_default_stays_unless_another_is_better_by_a_margin() -> None:
    assert measure.decide(WAYS, [[10.0, 9.6, 11.0]] * 6, 0.05) == (DEFAULT, 0.0)
    assert measure.decide(WAYS, [[10.0, 9.4, 11.0]] * 6, 0.05)[0] == OTHER
    assert measure.decide(WAYS, [[10.0, 9.4, 11.0]] * 6, 0.1)[0] == DEFAULT


def test_a_way_that_was_faster_in_one_half_only_is_not_chosen() -> None:
    calm, disturbed = [10.0, 10.0, 10.0], [20.0, 10.0, 10.0]
    assert measure.decide(WAYS, [calm] * 3 + [disturbed] * 3, 0.05)[0] == DEFAULT
    assert measure.decide(WAYS, [disturbed] * 3 + [calm] * 3, 0.05)[0] == DEFAULT


def test_single_disturbed_rounds_change_nothing() -> None:
    rounds = [[10.0, 9.0, 12.0] for _ in range(10)]
    rounds[1][1] = rounds[7][1] = 90.0
    rounds[2][0] = rounds[9][2] = 90.0
    assert measure.decide(WAYS, rounds, 0.05)[0] == OTHER


def test_lucky_rounds_and_rounds_disturbed_alike_choose_nothing() -> None:
    lucky = [[10.0, 10.0, 10.0], [10.0, 8.0, 10.0], [10.0, 10.0, 10.0]] * 2
    assert measure.decide(WAYS, lucky, 0.05)[0] == DEFAULT
    disturbed = [[10.0, 10.0, 10.0], [30.0, 20.0, 30.0], [30.0, 20.0, 30.0]] * 2
    assert measure.decide(WAYS, disturbed, 0.05)[0] == DEFAULT


class Clock:
    """Seconds that pass only while a way runs."""

    def __init__(self, seconds: dict[Way, float]) -> None:
        self.now_s, self._seconds, self.slower = 0.0, seconds, 1.0
        self.runs: list[Way] = []

    def perf_counter(self) -> float:
        return self.now_s

    def run(self, way: Way) -> None:
        self.runs.append(way)
        self.now_s += self._seconds[way] * (self.slower if len(self.runs) > 1 else 1.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock({DEFAULT: 1.0, OTHER: 0.92, THIRD: 1.5})
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    return clock


def test_all_ways_take_turns(clock: Clock) -> None:
    assert measure.fastest(WAYS, 16, clock.run, 100.0) == (OTHER, pytest.approx(0.08))
    assert clock.runs[1:7] == WAYS * 2


def test_one_row_needs_a_larger_gain(clock: Clock) -> None:
    assert measure.fastest(WAYS, 1, clock.run, 100.0) == (DEFAULT, 0.0)


def test_without_time_for_a_few_rounds_nothing_is_chosen(clock: Clock) -> None:
    assert measure.fastest(WAYS, 16, clock.run, 18.0) == (DEFAULT, 0.0)
    assert clock.runs == [DEFAULT]
    assert measure.fastest(WAYS, 16, clock.run, 20.6)[0] == OTHER


def test_a_machine_that_becomes_busy_ends_the_measurement(clock: Clock) -> None:
    clock.slower = 3.0
    assert measure.fastest(WAYS, 16, clock.run, 40.0) == (DEFAULT, 0.0)
    assert clock.now_s < 55.0
