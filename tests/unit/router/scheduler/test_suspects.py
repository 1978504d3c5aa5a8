"""Suspects start one at a time, and starts after a death are told."""

from __future__ import annotations

from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.scheduler.sequence import Sequence
from mmserve.router.scheduler.suspects import Suspects
from tests.unit.router.builders import request


def waiting(name: str, num_deaths: int) -> Sequence:
    return Sequence(request(name, [1], num_deaths=num_deaths, attempt=num_deaths), 0, 0.0, 100)


def start(suspects: Suspects, sequence: Sequence) -> None:
    kv = KvCacheManager(8, 4)
    table = kv.allocate(1, kv.match_prefix(sequence.tokens))
    assert table is not None
    sequence.start(0, table)
    suspects.started(sequence)


def test_a_suspect_waits_until_the_one_before_it_has_a_token() -> None:
    suspects, first, second = Suspects(), waiting("first", 2), waiting("second", 2)
    assert suspects.may_start(first)
    start(suspects, first)
    assert not suspects.may_start(second)
    first.first_token_s = 1.0
    assert suspects.may_start(second)


def test_a_suspect_does_not_wait_for_one_that_was_aborted_or_preempted() -> None:
    for leave in (Sequence.finish, Sequence.requeue):
        suspects, first, second = Suspects(), waiting("first", 2), waiting("second", 2)
        start(suspects, first)
        leave(first)
        assert suspects.may_start(second)


def test_others_start_beside_a_suspect() -> None:
    suspects = Suspects()
    start(suspects, waiting("suspect", 2))
    assert suspects.may_start(waiting("new", 0))
    assert suspects.may_start(waiting("lost once", 1))


def test_starts_are_told_once_and_only_of_sequences_with_a_death_behind_them() -> None:
    suspects = Suspects()
    for name, num_deaths in (("new", 0), ("lost once", 1), ("suspect", 2)):
        start(suspects, waiting(name, num_deaths))
    told = [
        (worker, reply.id, reply.attempt, reply.token_ids, reply.finish) for worker, reply in suspects.take_starts()
    ]
    assert told == [(0, "lost once", 1, (), None), (0, "suspect", 2, (), None)]
    assert suspects.take_starts() == []


def test_a_sequence_that_has_a_token_is_not_told_again_after_a_preemption() -> None:
    suspects, sequence = Suspects(), waiting("lost once", 1)
    sequence.first_token_s = 1.0
    start(suspects, sequence)
    assert suspects.take_starts() == []
