"""Turns to go on at another replica, so that the streams of one that died do not fall upon the others at once."""

from __future__ import annotations

import asyncio
from types import TracebackType

from mmserve.cluster.front.metrics import FrontMetrics


class Turns:
    """At most ``limit`` at once, each for ``longest_s`` at most; the others wait, first come first served."""

    def __init__(self, limit: int, longest_s: float, metrics: FrontMetrics) -> None:
        self._places = asyncio.Semaphore(limit)
        self._metrics = metrics
        self._longest_s = longest_s
        self._waiting = 0

    async def take(self) -> Turn:
        """Wait for a turn, which the caller ends."""
        self._count(1)
        try:
            await self._places.acquire()
        finally:
            self._count(-1)
        return Turn(self._places, self._longest_s)

    def _count(self, change: int) -> None:
        self._waiting += change
        self._metrics.add("resumes_waiting", self._waiting)


class Turn:
    """Ends with its context, when ``end`` is called, or after a time."""

    def __init__(self, places: asyncio.Semaphore, longest_s: float) -> None:
        self._places: asyncio.Semaphore | None = places
        self._timer = asyncio.get_running_loop().call_later(longest_s, self.end)

    def end(self) -> None:
        """Let the next one begin. Idempotent."""
        self._timer.cancel()
        if self._places is not None:
            self._places.release()
            self._places = None

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()
