from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.router.scheduler.kv_forecast import PeakKvEstimate

sequences = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=8)


def forecast_of(num_blocks: int, running: list[tuple[int, int]]) -> PeakKvEstimate:
    forecast = PeakKvEstimate(num_blocks)
    for growth, held in running:
        forecast.add(growth, held)
    return forecast


def simulated_peak(running: list[tuple[int, int]]) -> int:
    """Most blocks in use at any time, when all grow by one block a step and end when fully grown."""
    peak = sum(held for _, held in running)
    for step in range(1, 1 + max((growth for growth, _ in running), default=0)):
        peak = max(peak, sum(held + step for growth, held in running if growth >= step))
    return peak


@given(sequences, st.integers(0, 20), st.integers(1, 20), st.integers(0, 10))
def test_the_peak_is_that_of_a_simulation(running: list[tuple[int, int]], growth: int, held: int, shared: int) -> None:
    peak = shared + simulated_peak([*running, (growth, held)])
    for num_blocks, fits in ((peak, True), (peak - 1, False)):
        forecast = forecast_of(num_blocks, running)
        assert forecast.fits(growth, held, shared) == fits
        assert forecast.fits(growth, held, shared) == fits, "asking changes nothing"


@given(sequences, st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(0, 10)), max_size=5))
def test_one_that_did_not_fit_changes_nothing_for_others(
    running: list[tuple[int, int]], others: list[tuple[int, int, int]]
) -> None:
    forecast = forecast_of(60, running)
    for growth, held, shared in others:
        assert forecast.fits(growth, held, shared) == forecast_of(60, running).fits(growth, held, shared)


def test_what_has_entered_counts_until_it_leaves() -> None:
    forecast = PeakKvEstimate(10)
    assert forecast.fits(2, 4, 0)
    forecast.add(2, 4)
    assert forecast.held == 4
    assert not forecast.fits(2, 4, 1)
    assert forecast.fits(0, 3, 1)
    forecast.remove(2, 4)
    assert forecast.held == 0
    assert forecast.fits(2, 4, 1)


@given(sequences, sequences)
def test_who_has_left_is_forgotten(running: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    forecast, peak = forecast_of(0, [*left, *running]), simulated_peak([*running, (3, 3)])
    for growth, held in left:
        forecast.remove(growth, held)
    assert forecast.held == sum(held for _, held in running)
    assert not forecast.fits(3, 3, 1 - peak)
    assert forecast.fits(3, 3, -peak)
