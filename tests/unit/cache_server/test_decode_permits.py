"""Whose images are decoded now, in the whole server."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cache_server.decode_permits import Claim, DecodePermits
from mmserve.cache_server.entries import Lease


def _claim(number: int, nbytes: int = 10, owner: str = "visual-0") -> Claim:
    return Claim(float(number), Lease(owner, f"r{number}"), nbytes)


def test_at_most_so_many_requests_the_earliest_first_whoever_asked_first() -> None:
    turns, claims = DecodePermits(2, 1000), [_claim(number) for number in range(4)]
    for claim in (claims[3], claims[1], claims[2], claims[0]):
        turns.ask(claim)
    assert [turns.has_come(claim.lease) for claim in claims] == [True, True, False, False]
    assert turns.end(claims[0].lease)
    assert [turns.has_come(claim.lease) for claim in claims[1:]] == [True, True, False]
    assert (turns.num_held, turns.num_waiting, turns.peak) == (2, 1, 2)


def test_at_most_so_many_bytes_and_the_first_in_line_is_not_overtaken() -> None:
    turns = DecodePermits(0, 100)
    first, large, small = _claim(0, 60), _claim(1, 50), _claim(2, 10)
    for claim in (first, large, small):
        turns.ask(claim)
    assert turns.has_come(first.lease)
    assert not turns.has_come(small.lease)
    turns.end(first.lease)
    assert turns.has_come(large.lease)
    assert turns.has_come(small.lease)
    assert turns.pixels.used_nbytes == 60


def test_one_larger_than_the_budget_runs_alone() -> None:
    turns = DecodePermits(0, 100)
    huge, other = _claim(0, 500), _claim(1, 1)
    turns.ask(huge)
    turns.ask(other)
    assert turns.has_come(huge.lease)
    assert not turns.has_come(other.lease)
    turns.end(huge.lease)
    assert turns.has_come(other.lease)


def test_asking_and_ending_twice_counts_once() -> None:
    turns, claim = DecodePermits(1, 100), _claim(0, 40)
    turns.ask(claim)
    turns.ask(claim)
    assert turns.has_come(claim.lease)
    turns.ask(claim)
    assert turns.pixels.used_nbytes == 40
    assert turns.end(claim.lease)
    assert not turns.end(claim.lease)
    assert (turns.pixels.used_nbytes, turns.num_held, turns.num_waiting) == (0, 0, 0)


def test_a_dead_owner_holds_and_wants_nothing() -> None:
    turns = DecodePermits(1, 100)
    dead, alive = _claim(0, owner="dead"), _claim(2)
    for claim in (dead, _claim(1, owner="dead"), alive):
        turns.ask(claim)
    assert turns.has_come(dead.lease)
    turns.drop_owner("dead")
    assert turns.has_come(alive.lease)
    assert (turns.num_held, turns.num_waiting) == (1, 0)


def test_the_first_in_line_follows_a_turn_of_its_own_owner_which_is_the_only_one() -> None:
    turns, claims = DecodePermits(1, 100), [_claim(0), _claim(1), _claim(2)]
    for claim in claims:
        turns.ask(claim)
    assert turns.has_come(claims[0].lease)
    assert not turns.follows(claims[2].lease), "it is not the first"
    assert turns.follows(claims[1].lease)
    assert not turns.has_come(claims[1].lease)
    assert (turns.num_held, turns.num_waiting) == (1, 2)
    turns.end(claims[0].lease)
    assert turns.has_come(claims[1].lease), "nobody had to ask again"
    assert (turns.num_held, turns.num_waiting, turns.peak) == (1, 1, 1)


def test_nobody_follows_a_turn_of_another_owner_or_one_of_two() -> None:
    turns, mine, others, last = (
        DecodePermits(2, 100),
        _claim(0),
        _claim(1, owner="visual-1"),
        _claim(2, owner="visual-1"),
    )
    for claim in (mine, others, last):
        turns.ask(claim)
        turns.has_come(claim.lease)
    assert not turns.follows(last.lease)
    turns.end(others.lease)
    assert turns.has_come(last.lease)


def test_who_follows_is_not_overtaken_by_one_that_would_fit() -> None:
    turns, first, large, small = DecodePermits(0, 100), _claim(0, 60), _claim(1, 70), _claim(2, 10)
    for claim in (first, large, small):
        turns.ask(claim)
    assert turns.has_come(first.lease)
    assert turns.follows(large.lease)
    assert not turns.has_come(small.lease)
    turns.end(first.lease)
    assert turns.has_come(small.lease)
    assert turns.pixels.used_nbytes == 80


def test_who_follows_may_give_up_or_die() -> None:
    for is_over in (lambda turns: turns.end(_claim(1).lease), lambda turns: turns.drop_owner("visual-0")):
        turns, other = DecodePermits(1, 100), _claim(2, owner="visual-1")
        for claim in (_claim(0), _claim(1), other):
            turns.ask(claim)
        assert turns.has_come(_claim(0).lease)
        assert turns.follows(_claim(1).lease)
        is_over(turns)
        turns.end(_claim(0).lease)
        assert turns.has_come(other.lease)
        assert (turns.num_held, turns.num_waiting, turns.pixels.used_nbytes) == (1, 0, 10)


@given(limit=st.integers(0, 3), seed=st.integers(0, 1 << 30))
def test_never_more_than_allowed_and_everybody_in_the_end(limit: int, seed: int) -> None:
    draw, turns = random.Random(seed), DecodePermits(limit, 100)
    waiting = {number: _claim(number, draw.randint(1, 60)) for number in range(12)}
    running: dict[int, Claim] = {}
    for claim in draw.sample(list(waiting.values()), len(waiting)):
        turns.ask(claim)
    while waiting or running:
        come = {number: claim for number, claim in waiting.items() if turns.has_come(claim.lease)}
        running |= come
        waiting = {number: claim for number, claim in waiting.items() if number not in come}
        following = {number for number, claim in waiting.items() if turns.follows(claim.lease)}
        assert following <= {min(waiting, default=-1)}, "only the first in line"
        assert running, "somebody's turn has come"
        assert not limit or len(running) <= limit
        assert turns.pixels.used_nbytes == sum(claim.nbytes for claim in running.values()) <= 100
        assert not waiting or min(waiting) > max(running), "in order of arrival"
        turns.end(running.pop(draw.choice(sorted(running))).lease)
