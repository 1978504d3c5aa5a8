"""When a refused client should try again: estimated from how fast what is in its way has ended lately. Pure: the clock
is passed in.

The owner of a queue or a budget tells its ``Turnover`` what is taken and what is given back. By Little's law, room
becomes free at the rate of what is held now, divided by the mean time that one unit is held.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MAX_S = 120
"""The OpenAI clients ignore a longer Retry-After, and then come back much too soon."""
AFTER_RESTART_S = 5.0
"""The engine starts, and no restart of it was measured yet."""
AFTER_CACHE_RESTART_S = 1.0
"""The cache server has no state to load; its restart is over when the supervisor has noticed its death."""
AFTER_SHUTDOWN_S = 5.0
"""This server goes away. Another one, or the same one after an update, may serve by then."""

_MEMORY = 64
"""Older ends count half as much after this many further ones."""

Clock = Callable[[], float]
"""Seconds on a monotonic clock."""


def header_seconds(seconds: float) -> int:
    """The value of a Retry-After header: whole seconds, at least 1 and at most MAX_S."""
    return math.ceil(max(1.0, min(seconds, MAX_S)))


class Turnover:
    """What is held of one queue or budget, in any unit (requests, bytes), and how long a unit of it is held.

    Time in which nothing is held does not count, so that a server that was idle is not taken for a slow one.
    ``default_s``: the estimate before anything was given back. Not thread-safe.
    """

    def __init__(self, default_s: float, now: Clock = time.monotonic) -> None:
        self._default_s = default_s
        self._now = now
        self._held = 0.0
        self._changed_s = now()
        self._unit_seconds = 0.0
        """Integral of what is held, over time."""
        self._returned = 0.0
        self._num_returns = 0

    def take(self, amount: float = 1) -> None:
        """``amount`` is held from now on."""
        self._advance()
        self._held += amount

    def give(self, amount: float = 1) -> None:
        """``amount`` of what was taken is free again."""
        if not amount:
            return
        self._advance()
        self._held -= amount
        self._returned += amount
        self._num_returns += 1
        if self._num_returns >= 2 * _MEMORY:
            self._unit_seconds /= 2
            self._returned /= 2
            self._num_returns //= 2

    def hold(self, amount: float) -> None:
        """``amount`` is held in all from now on."""
        change = amount - self._held
        self.take(change) if change > 0 else self.give(-change)

    @contextmanager
    def held(self, amount: float = 1) -> Iterator[None]:
        """``amount`` is held until the context ends."""
        self.take(amount)
        try:
            yield
        finally:
            self.give(amount)

    def seconds_until_free(self, amount: float = 1) -> float:
        """Estimated seconds until ``amount`` is given back, from 0 to MAX_S. The default if nothing was given back yet,
        or nothing is held here: then something else is in the way."""
        self._advance()
        if self._returned <= 0 or self._held <= 0:
            return self._default_s
        mean_s = self._unit_seconds / self._returned
        return min(MAX_S, max(0.0, mean_s * amount / self._held))

    def _advance(self) -> None:
        now_s = self._now()
        self._unit_seconds += self._held * max(0.0, now_s - self._changed_s)
        self._changed_s = now_s


class RestartTimes:
    """How long the server was not ready, the last time that it became ready again after it had been ready.

    ``default_s``: the estimate before that. Not thread-safe.
    """

    def __init__(self, default_s: float = AFTER_RESTART_S, now: Clock = time.monotonic) -> None:
        self._expected_s = default_s
        self._now = now
        self._was_ready = False
        self._lost_s: float | None = None

    def observe(self, ready: bool) -> None:
        """The server is ready, or not, from now on."""
        if ready and self._lost_s is not None:
            self._expected_s, self._lost_s = self._now() - self._lost_s, None
        elif not ready and self._was_ready:
            self._lost_s = self._now()
        self._was_ready = ready

    def seconds_until_ready(self) -> float:
        """What is left of the expected time, at least a tenth of it: a restart may take longer than the last one."""
        elapsed_s = 0.0 if self._lost_s is None else self._now() - self._lost_s
        return max(self._expected_s - elapsed_s, self._expected_s / 10)
