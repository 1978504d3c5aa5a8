"""Replies that may have to wait: a call that cannot be answered yet is tried again after every change of the table.

The thread that made the change also tries the waiting calls. v2 gets their replies by a callback. v1 has a thread for
each connection and blocks it in ``result``.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
logger = logging.getLogger(__name__)


class Reply(Protocol[R_co]):
    """The reply to a call, now (Answered) or later (PendingCall)."""

    def result(self) -> R_co:
        """Block until there is a reply, at most until the call's deadline."""


class Answered(Generic[T]):
    """A reply that is known at once."""

    __slots__ = ("_reply",)

    def __init__(self, reply: T) -> None:
        self._reply = reply

    def result(self) -> T:
        return self._reply


class PendingCall(Generic[T]):
    """A waiting call. Its public methods are thread-safe; the others need the lock held."""

    def __init__(
        self,
        calls: PendingCalls,
        owner: str,
        deadline_s: float,
        attempt: Callable[[], T | None],
        last_reply: Callable[[], T],
        on_end: Callable[[T | None], None],
    ) -> None:
        self.owner = owner
        self.deadline_s = deadline_s
        self._calls = calls
        self._attempt = attempt
        self._last_reply = last_reply
        self._on_end = on_end
        self._is_done = False
        self._reply: Any = None
        self._error: Exception | None = None
        self._done_callback: Callable[[], None] | None = None

    def result(self) -> T:
        done = threading.Event()
        self.when_done(done.set)
        if not done.wait(max(0.0, self.deadline_s - self._calls.clock())):
            self.expire()
        if self._error is not None:
            raise self._error
        return self._reply  # type: ignore[no-any-return]

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when there is a reply: now, or later in any thread with the lock held."""
        with self._calls.lock:
            if not self._is_done:
                self._done_callback = callback
                return
        callback()

    def expire(self) -> None:
        """End the call with its last reply: its deadline has passed, or the reply is not needed any more."""
        with self._calls.lock:
            if not self._is_done:
                self.end()
                self._calls.retry()

    def try_again(self) -> bool:
        """Attempt the call. Returns True if it is done."""
        try:
            reply = self._attempt()
            if reply is not None:
                self._finish(reply)
        except Exception as error:  # the boundary of one call; its caller gets the error
            logger.exception("a waiting call of %s failed", self.owner)
            self._error = error
            self._finish(None)
        return self._is_done

    def end(self) -> None:
        self._finish(self._last_reply())

    def _finish(self, reply: Any) -> None:
        self._is_done, self._reply = True, reply
        self._calls.remove(self)
        self._on_end(reply)
        if self._done_callback is not None:
            self._done_callback()


class PendingCalls:
    """Waiting calls in order of arrival. Every method needs ``lock`` held."""

    def __init__(self, lock: threading.Lock, clock: Callable[[], float]) -> None:
        self.lock = lock
        self.clock = clock
        self._calls: list[PendingCall[Any]] = []

    def start(
        self,
        owner: str,
        wait_s: float,
        attempt: Callable[[], T | None],
        last_reply: Callable[[], T],
        on_end: Callable[[T | None], None] = lambda reply: None,
    ) -> Reply[T]:
        """``attempt`` answers the call or returns None; ``last_reply`` is used when wait_s have passed or the owner is
        gone. ``on_end`` is called once with the reply, or with None if ``attempt`` raised."""
        reply: T | None = None
        try:
            reply = attempt()
            if reply is None and wait_s <= 0:
                reply = last_reply()
        finally:
            if reply is not None or sys.exception() is not None:
                on_end(reply)
        if reply is not None:
            return Answered(reply)
        call = PendingCall(self, owner, self.clock() + wait_s, attempt, last_reply, on_end)
        self._calls.append(call)
        return call

    def retry(self) -> None:
        """Attempt all calls again after a change of the table. One that succeeds may let the next one succeed."""
        while any([call.try_again() for call in list(self._calls)]):  # noqa: C419 - each of them is to be tried
            pass

    def end_owner(self, owner: str) -> None:
        """End the calls of a disconnected owner with their last reply."""
        for call in [call for call in self._calls if call.owner == owner]:
            call.end()

    def remove(self, call: PendingCall[Any]) -> None:
        self._calls.remove(call)
