"""The requests that Ray counts at one replica, and when those end that nobody ends. No Ray in it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.reports import Holdings, Load

_OLD_S = 5.0
"""A younger request may be on its way to the server, which does not know of it."""
_LONGEST_S = 600.0
"""As long as a server that is to end waits for its answers. A longer one goes on, and Ray no longer counts it."""


class Held:
    """Used from one event loop. ``longest_s``: a front that has died ends nothing, and its server may never be idle."""

    def __init__(self, longest_s: float = _LONGEST_S) -> None:
        self._longest_s = longest_s
        self._ends: dict[asyncio.Future[None], float] = {}
        """When each began."""

    def __len__(self) -> int:
        return len(self._ends)

    async def until_over(self, now_s: float) -> None:
        """Wait until cancelled, until the server has no request any more, or for the longest time."""
        end = asyncio.get_running_loop().create_future()
        self._ends[end] = now_s
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._longest_s):
                    await end
        finally:
            del self._ends[end]

    def idle(self, now_s: float) -> None:
        """The server has no request now."""
        for end, began_s in self._ends.items():
            if now_s - began_s > _OLD_S and not end.done():
                end.set_result(None)


class Heard:
    """What a replica's server reports, for ``cluster``. ``on_idle``: told when it has no request."""

    def __init__(self, cluster: Cluster, on_idle: Callable[[float], None]) -> None:
        self._cluster, self._on_idle = cluster, on_idle

    def load(self, replica: str, load: Load, now_s: float) -> None:
        """See Cluster."""
        self._cluster.load(replica, load, now_s)
        if not load.in_flight:
            self._on_idle(now_s)

    def hold(self, replica: str, report: Holdings) -> bool:
        """See Cluster."""
        return self._cluster.hold(replica, report)


async def until_over(cancelled: Awaitable[object], within_s: float, errors: tuple[type[Exception], ...]) -> bool:
    """Wait for what was cancelled; False if it takes longer than ``within_s``. ``errors`` may end it as well. Raises
    CancelledError if the caller itself is cancelled."""
    try:
        async with asyncio.timeout(within_s):
            await cancelled
    except TimeoutError:
        return False
    except errors:
        return True
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    return True
