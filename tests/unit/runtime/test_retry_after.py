"""Estimates for Retry-After: they follow the rate at which room becomes free, and stay within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.runtime.retry_after import MAX_S, RestartTimes, Turnover, header_seconds


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _answered(turnover: Turnover, clock: Clock, seconds: float, amount: float = 1) -> None:
    turnover.take(amount)
    clock.now_s += seconds
    turnover.give(amount)


def test_the_default_holds_until_something_has_ended() -> None:
    clock = Clock()
    turnover = Turnover(7.0, clock)
    turnover.take(3)
    clock.now_s += 100
    assert turnover.seconds_until_free() == 7.0


def test_with_nothing_held_something_else_is_in_the_way() -> None:
    clock = Clock()
    turnover = Turnover(7.0, clock)
    _answered(turnover, clock, 30.0)
    assert turnover.seconds_until_free() == 7.0


def test_one_of_many_ends_sooner_than_one_of_few() -> None:
    clock = Clock()
    turnover = Turnover(7.0, clock)
    _answered(turnover, clock, 30.0, amount=4)
    turnover.take(4)
    assert turnover.seconds_until_free() == 7.5  # four at once, each for 30 s
    turnover.hold(2)
    turnover.hold(4)
    assert turnover.seconds_until_free() == 5.0  # six have ended by then
    assert turnover.seconds_until_free(4) == 20.0


def test_idle_time_does_not_count() -> None:
    clock = Clock()
    turnover = Turnover(7.0, clock)
    _answered(turnover, clock, 8.0)
    clock.now_s += 86_400
    turnover.take(2)
    assert turnover.seconds_until_free() == 4.0


def test_the_estimate_follows_a_server_that_becomes_faster() -> None:
    clock = Clock()
    turnover = Turnover(7.0, clock)
    for _ in range(200):
        _answered(turnover, clock, 60.0)
    for _ in range(1000):
        _answered(turnover, clock, 2.0)
    turnover.take()
    assert 2.0 <= turnover.seconds_until_free() < 3.0


def test_a_server_that_ends_nothing_any_more_makes_it_grow() -> None:
    clock = Clock()
    turnover = Turnover(7.0, clock)
    _answered(turnover, clock, 2.0)
    turnover.take()
    seen = []
    for _ in range(20):
        seen.append(turnover.seconds_until_free())
        clock.now_s += 10
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (2.0, MAX_S)


_CHANGES = st.lists(
    st.tuples(st.sampled_from(["take", "give"]), st.integers(0, 1 << 40), st.floats(0, 1e6)), max_size=40
)


@given(_CHANGES, st.integers(0, 1 << 40), st.floats(0, 1e9))
def test_every_header_is_from_1_to_120(changes: list[tuple[str, int, float]], wanted: int, default_s: float) -> None:
    clock = Clock()
    turnover, held = Turnover(default_s, clock), 0
    for change, amount, seconds in changes:
        clock.now_s += seconds
        if change == "take":
            turnover.take(amount)
            held += amount
        else:
            turnover.give(min(held, amount))
            held -= min(held, amount)
    assert 1 <= header_seconds(turnover.seconds_until_free(wanted)) <= 120


@given(st.floats(allow_nan=False))
def test_any_number_of_seconds_makes_a_valid_header(seconds: float) -> None:
    assert 1 <= header_seconds(seconds) <= 120
    assert header_seconds(seconds) >= min(seconds, 120)


def test_a_restart_is_expected_to_take_as_long_as_the_last_one() -> None:
    clock = Clock()
    restarts = RestartTimes(5.0, clock)
    restarts.observe(False)  # the start of the server is no restart
    clock.now_s += 100
    restarts.observe(True)
    restarts.observe(False)
    assert restarts.seconds_until_ready() == 5.0
    clock.now_s += 40
    restarts.observe(False)
    assert restarts.seconds_until_ready() == 0.5  # should have ended long ago
    restarts.observe(True)
    restarts.observe(False)
    assert restarts.seconds_until_ready() == 40.0
    clock.now_s += 30
    assert restarts.seconds_until_ready() == 10.0
