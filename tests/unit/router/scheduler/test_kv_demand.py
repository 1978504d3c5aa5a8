from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.router.kv_cache.manager import BlockTable, Match, blocks_for
from mmserve.router.scheduler.kv_demand import KvDemandEstimator, OutputLengths
from mmserve.router.scheduler.sequence import Sequence
from tests.unit.router.builders import request

changes = st.lists(
    st.tuples(st.sampled_from(["enter", "grow", "leave", "end", "ask"]), st.integers(0, 90)), max_size=40
)


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


def running(number: int, num_prompt: int) -> Sequence:
    """Every third says exactly how long it gets."""
    stop_ids = () if number % 3 == 0 else (3,)
    sequence = Sequence(request(str(number), [1] * num_prompt, max_tokens=200, stop_ids=stop_ids), number, 0.0, 1000)
    sequence.run(number, BlockTable([0] * blocks_for(num_prompt), [], Match([])), 0)
    return sequence


def room_left(outlook: KvDemandEstimator) -> int:
    """How much others may hold so that one more still fits."""
    asking = Sequence(request("asking", [1] * 20, max_tokens=50, stop_ids=(3,)), 1000, 0.0, 1000)
    return max(
        (held for held in range(500) if outlook.fits(asking, num_hit=0, shared=0, num_held=held)),
        default=-1,
    )


@given(changes)
def test_what_is_kept_is_what_would_be_found_from_the_beginning(changes: list[tuple[str, int]]) -> None:
    kept, alive = KvDemandEstimator(400), list[Sequence]()
    for number, (change, value) in enumerate(changes):
        some = alive[value % len(alive)] if alive else None
        if change == "enter":
            alive.append(running(number, value + 1))
            kept.entered(alive[-1])
        elif change == "ask":
            room_left(kept)
        elif some and some.holding and change == "grow":
            some.tokens.extend([1] * 16)
            some.holding.blocks.append(0)
            kept.grown(some)
        elif some and change == "leave":
            alive.remove(some)
            kept.left(some)
        elif some and change == "end":
            kept.ended(some)
    anew = KvDemandEstimator(400)
    anew.outputs = kept.outputs
    for sequence in alive:
        anew.entered(sequence)
    assert room_left(kept) == room_left(anew)
