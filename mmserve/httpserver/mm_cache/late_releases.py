"""Releases leases of requests whose release the cache server has not answered, until it does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from mmserve.runtime.errors import Unavailable

INTERVAL_S = 1.0


class LateReleases:
    """Repeats releases in a background task, which runs while there are any. ``release`` raises Unavailable.

    A call that timed out may still be carried out, even after the first release that is answered: the server takes
    messages of different connections in any order. So each release is repeated once more, an interval later.
    """

    def __init__(self, release: Callable[[str], Awaitable[object]]) -> None:
        self._release = release
        self._num_left: dict[str, int] = {}
        """Request id -> releases that are still to be answered."""
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._num_left)

    def add(self, request_id: str, *, answered: bool = False) -> None:
        """``answered``: one release was answered already."""
        self._num_left[request_id] = 1 if answered else 2
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """Give up. The leases end with the connections of this process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._num_left:
            await asyncio.sleep(INTERVAL_S)
            for request_id in list(self._num_left):
                try:
                    await self._release(request_id)
                except Unavailable:
                    break
                self._num_left[request_id] -= 1
                if not self._num_left[request_id]:
                    del self._num_left[request_id]
