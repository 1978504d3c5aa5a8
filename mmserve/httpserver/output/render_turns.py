"""Shares each iteration of the event loop among the responses that render answers.

A stream at its normal pace never waits here. A response with a backlog (its client reads slowly, or the loop was busy)
renders a part of it in each iteration, and so does the next one: no backlog holds up other requests, probes, or the
notice that its client has disconnected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

LIMIT = 1500
"""Work in one iteration. The unit is one log-probability rendered as JSON: 1.5 us if its token was spelled before, or
up to 7 us. So an iteration takes 2 to 10 ms."""


class RenderTurns:
    """One for a worker. Used from its event loop only. First come, first served."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = self._left = limit
        self._waiting: deque[tuple[asyncio.Future[None], Callable[[], int]]] = deque()
        self._renewal: asyncio.Handle | None = None
        """Set while anything of this iteration is spent, or anybody waits for the next one."""

    async def wait(self, work: Callable[[], int]) -> None:
        """Return at once if this iteration has room and nobody waits for it, otherwise in a later one.

        ``work()``: what the caller will spend.
        """
        if self._left > 0 and not self._waiting:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, work))
        self._renew_later()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.done() or turn.cancelled():
                self._waiting = deque(entry for entry in self._waiting if entry[0] is not turn)
            raise

    def spend(self, work: int) -> None:
        """Count work that is done before the caller returns to the event loop."""
        self._left -= work
        self._renew_later()

    def _renew_later(self) -> None:
        if self._renewal is None:
            self._renewal = asyncio.get_running_loop().call_soon(self._renew)

    def _renew(self) -> None:
        """Begin an iteration. The turns that it gives are used in the next one, before the renewal after this."""
        self._renewal, self._left = None, self._limit
        given = 0
        while self._waiting and given < self._limit:
            turn, work = self._waiting.popleft()
            if not turn.done():
                given += work()
                turn.set_result(None)
        if self._waiting:
            self._renew_later()
