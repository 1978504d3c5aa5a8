"""Waiting calls: tried again after changes, ended at their deadline, and a failing one does not affect others."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from mmserve.cache_server.waiting.pending import PendingCall, PendingCalls, Reply

OWNER = "http-0"


class Waiting:
    """Calls that are answered by the numbers that are there, each number once."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.numbers: list[int] = []
        self.ended: list[int | None] = []
        self.lock = threading.Lock()
        self.calls = PendingCalls(self.lock, lambda: self.now_s)

    def take(
        self, wait_s: float = 60.0, owner: str = OWNER, attempt: Callable[[], int | None] | None = None
    ) -> Reply[int]:
        def first() -> int | None:
            return self.numbers.pop(0) if self.numbers else None

        with self.lock:
            return self.calls.start(owner, wait_s, attempt or first, lambda: -1, self.ended.append)

    def put(self, *numbers: int) -> None:
        with self.lock:
            self.numbers += numbers
            self.calls.retry()


def test_a_call_that_can_be_answered_does_not_wait() -> None:
    waiting = Waiting()
    waiting.numbers = [1]
    assert waiting.take().result() == 1
    assert waiting.take(wait_s=0.0).result() == -1
    assert waiting.ended == [1, -1]


def test_waiting_calls_are_answered_in_order_of_arrival() -> None:
    waiting = Waiting()
    first, second, third = waiting.take(), waiting.take(), waiting.take()
    waiting.put(1, 2)
    assert [first.result(), second.result()] == [1, 2]
    waiting.put(3)
    assert third.result() == 3
    assert waiting.ended == [1, 2, 3]


def test_a_call_ends_at_its_deadline_and_once() -> None:
    waiting = Waiting()
    call = waiting.take(wait_s=5.0)
    assert isinstance(call, PendingCall)
    assert call.deadline_s == 5.0
    waiting.now_s = 5.0
    assert call.result() == -1
    call.expire()
    waiting.put(1)
    assert call.result() == -1
    assert waiting.ended == [-1]
    assert waiting.take().result() == 1


def test_the_end_of_an_owner_ends_its_calls_alone() -> None:
    waiting = Waiting()
    gone, left = waiting.take(), waiting.take(owner="http-1")
    with waiting.lock:
        waiting.calls.end_owner(OWNER)
    assert gone.result() == -1
    waiting.put(1)
    assert left.result() == 1


def test_a_callback_is_called_once_whenever_it_is_set() -> None:
    waiting, called = Waiting(), []
    call = waiting.take()
    assert isinstance(call, PendingCall)
    call.when_done(lambda: called.append("later"))
    assert called == []
    waiting.put(1)
    call.when_done(lambda: called.append("at once"))
    assert called == ["later", "at once"]


def test_an_error_is_raised_in_the_waiting_call_and_not_in_the_one_that_changed_the_table() -> None:
    def broken() -> int | None:
        if waiting.numbers:
            raise ValueError("a bug")
        return None

    waiting = Waiting()
    call, other = waiting.take(attempt=broken), waiting.take()
    waiting.put(1)
    with pytest.raises(ValueError, match="a bug"):
        call.result()
    assert other.result() == 1
    assert waiting.ended == [None, 1]


def test_an_error_at_the_first_attempt_ends_the_call_too() -> None:
    def broken() -> int | None:
        raise ValueError("a bug")

    waiting = Waiting()
    with pytest.raises(ValueError, match="a bug"):
        waiting.take(attempt=broken)
    assert waiting.ended == [None]
