from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.router.forecast import KvForecast, OutputLengths
from mmserve.router.sequence import Sequence
from tests.unit.router.builders import request

sequences = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=8)


def simulated_peak(running: list[tuple[int, int]]) -> int:
    """Most blocks in use at any time, when all grow by one block a step and end when fully grown."""
    peak = sum(held for _, held in running)
    for step in range(1, 1 + max((growth for growth, _ in running), default=0)):
        peak = max(peak, sum(held + step for growth, held in running if growth >= step))
    return peak


@given(sequences, st.integers(0, 20), st.integers(1, 20), st.integers(0, 10), st.integers(0, 10))
def test_the_peak_is_that_of_a_simulation(
    running: list[tuple[int, int]], growth: int, held: int, shared: int, more_shared: int
) -> None:
    peak = shared + more_shared + simulated_peak([*running, (growth, held)])
    for num_blocks, fits in ((peak, True), (peak - 1, False)):
        forecast = KvForecast(num_blocks, shared, running)
        assert forecast.fits(growth=growth, held=held, shared=more_shared) == fits
        assert forecast.fits(growth=growth, held=held, shared=more_shared) == fits, "asking changes nothing"


@given(sequences, st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(0, 10)), max_size=5))
def test_one_that_did_not_fit_changes_nothing_for_others(
    running: list[tuple[int, int]], others: list[tuple[int, int, int]]
) -> None:
    forecast = KvForecast(60, 0, running)
    for growth, held, shared in others:
        expected = KvForecast(60, 0, running).fits(growth=growth, held=held, shared=shared)
        assert forecast.fits(growth=growth, held=held, shared=shared) == expected


def test_what_has_entered_counts() -> None:
    forecast = KvForecast(10, 0, [])
    assert forecast.fits(growth=2, held=4, shared=0)
    forecast.add(growth=2, held=4, shared=1)
    assert not forecast.fits(growth=2, held=4, shared=0)
    assert forecast.fits(growth=0, held=3, shared=0)


def test_expected_output_follows_what_is_observed() -> None:
    lengths = OutputLengths()
    open_end = Sequence(request("a", [1], max_tokens=4000, stop_ids=(3,)), 0, 0.0, 5000)
    first = lengths.final_length(open_end)
    for _ in range(500):
        lengths.observe(40)
    assert 1 + 40 <= lengths.final_length(open_end) < first


def test_expected_output_keeps_to_what_the_request_says() -> None:
    lengths = OutputLengths()
    short = request("a", [1], max_tokens=5, stop_ids=(3,))
    assert lengths.final_length(Sequence(short, 0, 0.0, 1000)) == 1 + 5
    assert lengths.final_length(Sequence(short, 0, 0.0, 4)) == 4
    endless = Sequence(request("a", [1], max_tokens=900), 0, 0.0, 10_000)
    assert lengths.final_length(endless) == 1 + 900, "nothing can stop it earlier"


def test_a_sequence_longer_than_expected_is_expected_to_go_on() -> None:
    lengths = OutputLengths()
    for _ in range(500):
        lengths.observe(10)
    long = Sequence(request("a", [1], max_tokens=4000, output=[1] * 1000, stop_ids=(3,)), 0, 0.0, 5000)
    assert lengths.final_length(long) >= 1 + 1000 + 100
