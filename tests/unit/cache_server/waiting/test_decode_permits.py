"""Which requests' images may be decoded now, over all visual servers."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.waiting.decode_permits import DecodePermits, QueuedRequest
from mmserve.messages.cache import PermitsReply


def _request(number: int, nbytes: int = 10, owner: str = "visual-0") -> QueuedRequest:
    return QueuedRequest(float(number), Lease(owner, f"r{number}"), nbytes)


def _is_granted(permits: DecodePermits, request: QueuedRequest) -> bool:
    permits.advance()
    return permits.is_granted(request.lease)


def _is_promised(permits: DecodePermits, request: QueuedRequest) -> bool:
    permits.advance()
    return permits.is_promised(request.lease)


def test_permits_are_limited_in_number_and_granted_by_arrival_not_by_order_of_asking() -> None:
    permits, requests = DecodePermits(2, 1000), [_request(number) for number in range(4)]
    for request in (requests[3], requests[1], requests[2], requests[0]):
        permits.enqueue(request)
    assert [_is_granted(permits, request) for request in requests] == [True, True, False, False]
    assert permits.release(requests[0].lease)
    assert [_is_granted(permits, request) for request in requests[1:]] == [True, True, False]
    assert (permits.num_granted, permits.num_waiting, permits.peak) == (2, 1, 2)


def test_permits_are_limited_in_bytes_and_the_head_of_the_queue_is_not_overtaken() -> None:
    permits = DecodePermits(0, 100)
    first, large, small = _request(0, 60), _request(1, 50), _request(2, 10)
    for request in (first, large, small):
        permits.enqueue(request)
    assert _is_granted(permits, first)
    assert not _is_granted(permits, small)
    permits.release(first.lease)
    assert _is_granted(permits, large)
    assert _is_granted(permits, small)
    assert permits.pixels.used_nbytes == 60


def test_a_request_larger_than_the_budget_is_decoded_alone() -> None:
    permits = DecodePermits(0, 100)
    huge, other = _request(0, 500), _request(1, 1)
    permits.enqueue(huge)
    permits.enqueue(other)
    assert _is_granted(permits, huge)
    assert not _is_granted(permits, other)
    permits.release(huge.lease)
    assert _is_granted(permits, other)


def test_asking_and_releasing_twice_counts_once() -> None:
    permits, request = DecodePermits(1, 100), _request(0, 40)
    permits.enqueue(request)
    permits.enqueue(request)
    assert _is_granted(permits, request)
    permits.enqueue(request)
    assert permits.pixels.used_nbytes == 40
    assert permits.release(request.lease)
    assert not permits.release(request.lease)
    assert (permits.pixels.used_nbytes, permits.num_granted, permits.num_waiting) == (0, 0, 0)


def test_everything_of_a_dead_visual_server_is_released() -> None:
    permits = DecodePermits(1, 100)
    dead, alive = _request(0, owner="dead"), _request(3)
    for request in (dead, _request(1, owner="dead"), _request(2, owner="dead"), alive):
        permits.enqueue(request)
    assert _is_granted(permits, dead)
    permits.drop_owner("dead")
    assert _is_granted(permits, alive)
    assert (permits.num_granted, permits.num_waiting) == (1, 0)


def test_the_head_of_the_queue_is_promised_the_next_permit_if_its_owner_has_the_only_one() -> None:
    permits, requests = DecodePermits(1, 100), [_request(0), _request(1), _request(2)]
    for request in requests:
        permits.enqueue(request)
    assert _is_granted(permits, requests[0])
    assert not _is_promised(permits, requests[2]), "it is not the head"
    assert _is_promised(permits, requests[1])
    assert not _is_granted(permits, requests[1])
    assert (permits.num_granted, permits.num_waiting) == (1, 2)
    permits.release(requests[0].lease)
    assert permits.is_granted(requests[1].lease), "without another call"
    assert (permits.num_granted, permits.num_waiting, permits.peak) == (1, 1, 1)


def test_no_permit_is_promised_while_another_owner_has_one_or_two_are_out() -> None:
    permits, mine, others, last = (
        DecodePermits(2, 100),
        _request(0),
        _request(1, owner="visual-1"),
        _request(2, owner="visual-1"),
    )
    for request in (mine, others, last):
        permits.enqueue(request)
        permits.advance()
    assert not _is_promised(permits, last)
    permits.release(others.lease)
    assert _is_granted(permits, last)


def test_a_promise_is_not_overtaken_by_a_request_that_would_fit() -> None:
    permits, first, large, small = DecodePermits(0, 100), _request(0, 60), _request(1, 70), _request(2, 10)
    for request in (first, large, small):
        permits.enqueue(request)
    assert _is_granted(permits, first)
    assert _is_promised(permits, large)
    assert not _is_granted(permits, small)
    permits.release(first.lease)
    assert _is_granted(permits, small)
    assert permits.pixels.used_nbytes == 80


def test_a_promise_may_be_declined_or_its_owner_may_die() -> None:
    for is_over in (lambda permits: permits.release(_request(1).lease), lambda permits: permits.drop_owner("visual-0")):
        permits, other = DecodePermits(1, 100), _request(2, owner="visual-1")
        for request in (_request(0), _request(1), other):
            permits.enqueue(request)
        assert _is_granted(permits, _request(0))
        assert _is_promised(permits, _request(1))
        is_over(permits)
        permits.release(_request(0).lease)
        assert _is_granted(permits, other)
        assert (permits.num_granted, permits.num_waiting, permits.pixels.used_nbytes) == (1, 0, 10)


def test_a_call_is_answered_when_there_is_something_to_tell() -> None:
    permits, first, second, third = DecodePermits(1, 100), _request(0), _request(1), _request(2, owner="visual-1")
    for request in (first, second, third):
        permits.enqueue(request)
    both = [first.lease, second.lease]
    assert permits.answer([third.lease]) is None
    assert permits.answer(both) == PermitsReply(granted=("r0",), promised="r1")
    permits.release(third.lease)
    assert permits.answer([third.lease]) == PermitsReply(), "released while its call waited"


def test_a_call_keeps_only_permits_that_its_reply_names() -> None:
    permits, requests = DecodePermits(1, 100), [_request(number) for number in range(3)]
    for request in requests:
        permits.enqueue(request)
    leases = [request.lease for request in requests]
    reply = permits.answer(leases)
    assert reply == PermitsReply(granted=("r0",), promised="r1")
    permits.release_others(leases, reply)
    assert [permits.is_known(lease) for lease in leases] == [True, True, False]


@given(limit=st.integers(0, 3), seed=st.integers(0, 1 << 30))
def test_limits_hold_and_every_request_gets_its_permit(limit: int, seed: int) -> None:
    draw, permits = random.Random(seed), DecodePermits(limit, 100)
    waiting = {number: _request(number, draw.randint(1, 60)) for number in range(12)}
    running: dict[int, QueuedRequest] = {}
    for request in draw.sample(list(waiting.values()), len(waiting)):
        permits.enqueue(request)
    while waiting or running:
        granted = {number: request for number, request in waiting.items() if _is_granted(permits, request)}
        running |= granted
        waiting = {number: request for number, request in waiting.items() if number not in granted}
        promised = {number for number, request in waiting.items() if _is_promised(permits, request)}
        assert promised <= {min(waiting, default=-1)}, "only the head of the queue"
        assert running, "at least one permit is out"
        assert not limit or len(running) <= limit
        assert permits.pixels.used_nbytes == sum(request.nbytes for request in running.values()) <= 100
        assert not waiting or min(waiting) > max(running), "in order of arrival"
        permits.release(running.pop(draw.choice(sorted(running))).lease)
