from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.router.kv_cache.manager import BlockTable, KvCacheManager, PrefixMatch
from mmserve.router.scheduler.kv_demand import KvDemandEstimator, OutputLengths, PeakKvEstimate
from mmserve.router.scheduler.sequence import Sequence
from tests.unit.router.builders import request

BLOCK_TOKENS = 16

changes = st.lists(
    st.tuples(st.sampled_from(["start", "grow", "remove", "end", "ask"]), st.integers(0, 90)), max_size=40
)
demands = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), max_size=8)
"""(growth, private blocks) of running sequences."""

# ---- expected output lengths


def test_the_expected_output_length_follows_the_observed_ones() -> None:
    lengths = OutputLengths(BLOCK_TOKENS)
    open_end = Sequence(request("a", [1], max_tokens=4000, stop_ids=(3,)), 0, 0.0, 5000)
    first = lengths.final_length(open_end)
    for _ in range(500):
        lengths.observe(40)
    assert 1 + 40 <= lengths.final_length(open_end) < first


def test_the_expected_output_length_respects_the_limits_of_the_request() -> None:
    lengths = OutputLengths(BLOCK_TOKENS)
    short = request("a", [1], max_tokens=5, stop_ids=(3,))
    assert lengths.final_length(Sequence(short, 0, 0.0, 1000)) == 1 + 5
    assert lengths.final_length(Sequence(short, 0, 0.0, 4)) == 4
    endless = Sequence(request("a", [1], max_tokens=900), 0, 0.0, 10_000)
    assert lengths.final_length(endless) == 1 + 900, "no stop token can end it earlier"


def test_a_sequence_longer_than_expected_is_expected_to_grow_by_a_tenth() -> None:
    lengths = OutputLengths(BLOCK_TOKENS)
    for _ in range(500):
        lengths.observe(10)
    long = Sequence(request("a", [1], max_tokens=4000, output=[1] * 1000, stop_ids=(3,)), 0, 0.0, 5000)
    assert lengths.final_length(long) >= 1 + 1000 + 100


# ---- demand of the running sequences


def estimator() -> KvDemandEstimator:
    return KvDemandEstimator(KvCacheManager(400, BLOCK_TOKENS))


def running(number: int, num_prompt: int) -> Sequence:
    """A running sequence. Every third one has no stop token, so its final length is exact."""
    stop_ids = () if number % 3 == 0 else (3,)
    sequence = Sequence(request(str(number), [1] * num_prompt, max_tokens=200, stop_ids=stop_ids), number, 0.0, 1000)
    sequence.start(number, BlockTable([0] * -(-num_prompt // BLOCK_TOKENS), [], PrefixMatch([])))
    return sequence


def blocks_left(kv_demand: KvDemandEstimator) -> int:
    """The most blocks that others may use so that one more sequence still fits; -1: it never fits."""
    asking = Sequence(request("asking", [1] * 20, max_tokens=50, stop_ids=(3,)), 1000, 0.0, 1000)
    return max((used for used in range(500) if kv_demand.fits(asking, num_hit_blocks=0, num_used=used)), default=-1)


@given(changes)
def test_cached_estimates_equal_those_computed_from_scratch(changes: list[tuple[str, int]]) -> None:
    cached, alive = estimator(), list[Sequence]()
    for number, (change, value) in enumerate(changes):
        some = alive[value % len(alive)] if alive else None
        if change == "start":
            alive.append(running(number, value + 1))
            cached.add(alive[-1])
        elif change == "ask":
            blocks_left(cached)
        elif some and some.block_table and change == "grow":
            some.tokens.extend([1] * BLOCK_TOKENS)
            some.block_table.blocks.append(0)
            cached.mark_grown(some)
        elif some and change == "remove":
            alive.remove(some)
            cached.remove(some)
        elif some and change == "end":
            cached.observe_output(some)
    fresh = estimator()
    fresh.output_lengths = cached.output_lengths
    for sequence in alive:
        fresh.add(sequence)
    assert blocks_left(cached) == blocks_left(fresh)


# ---- peak of KV use


def estimate_of(num_blocks: int, running: list[tuple[int, int]]) -> PeakKvEstimate:
    estimate = PeakKvEstimate(num_blocks)
    for growth, private in running:
        estimate.add(growth, private)
    return estimate


def simulated_peak(running: list[tuple[int, int]]) -> int:
    """Most blocks in use at any time, when all sequences grow by one block a step and end when fully grown."""
    peak = sum(private for _, private in running)
    for step in range(1, 1 + max((growth for growth, _ in running), default=0)):
        peak = max(peak, sum(private + step for growth, private in running if growth >= step))
    return peak


@given(demands, st.integers(0, 20), st.integers(1, 20), st.integers(0, 10))
def test_the_peak_equals_that_of_a_simulation(
    running: list[tuple[int, int]], growth: int, private: int, shared: int
) -> None:
    peak = shared + simulated_peak([*running, (growth, private)])
    for num_blocks, fits in ((peak, True), (peak - 1, False)):
        estimate = estimate_of(num_blocks, running)
        assert estimate.fits(growth, private, shared) == fits
        assert estimate.fits(growth, private, shared) == fits, "asking changes nothing"


@given(demands, st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(0, 10)), max_size=5))
def test_a_refused_sequence_does_not_change_the_answer_for_others(
    running: list[tuple[int, int]], others: list[tuple[int, int, int]]
) -> None:
    estimate = estimate_of(60, running)
    for growth, private, shared in others:
        assert estimate.fits(growth, private, shared) == estimate_of(60, running).fits(growth, private, shared)


def test_a_sequence_counts_until_it_is_removed() -> None:
    estimate = PeakKvEstimate(10)
    assert estimate.fits(2, 4, 0)
    estimate.add(2, 4)
    assert estimate.num_private == 4
    assert not estimate.fits(2, 4, 1)
    assert estimate.fits(0, 3, 1)
    estimate.remove(2, 4)
    assert estimate.num_private == 0
    assert estimate.fits(2, 4, 1)


@given(demands, demands)
def test_removed_sequences_leave_nothing_behind(running: list[tuple[int, int]], removed: list[tuple[int, int]]) -> None:
    estimate, peak = estimate_of(0, [*removed, *running]), simulated_peak([*running, (3, 3)])
    for growth, private in removed:
        estimate.remove(growth, private)
    assert estimate.num_private == sum(private for _, private in running)
    assert not estimate.fits(3, 3, 1 - peak)
    assert estimate.fits(3, 3, -peak)
