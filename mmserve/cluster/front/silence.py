"""Takes back what waits at a replica whose processes are stopped: suspended, or on a machine that stands still.

Its connections stay, and nothing would end them. So when it has not reported for seconds while others have, it is asked
for a sign of life; without one, what has had no byte meanwhile is lost there and goes on elsewhere. A replica that has
reported never, or that is the only one, is not asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable

from mmserve.cluster.front.upstream import Upstream

_ANSWER_S = 2.0
"""For an answer that takes a busy replica milliseconds."""
_AGAIN_S = 5.0
"""Between two questions."""
logger = logging.getLogger(__name__)


class SilenceWatch:
    """``mute``: the replicas that may be stopped now. ``upstream``: of one; None: nothing was sent there. Used from one
    event loop."""

    def __init__(self, mute: Callable[[float], Iterable[str]], upstream: Callable[[str], Upstream | None]) -> None:
        self._mute, self._upstream = mute, upstream
        self._asked: dict[str, tuple[asyncio.Task[None], float]] = {}
        """And when."""

    def heard(self) -> None:
        """A replica has reported."""
        now_s = time.monotonic()
        mute = {*self._mute(now_s)}
        if not (mute or self._asked):
            return
        for replica in mute:
            task, asked_s = self._asked.get(replica, (None, float("-inf")))
            if (task is None or task.done()) and now_s - asked_s >= _AGAIN_S:
                asking = asyncio.create_task(self._ask(replica, now_s), name=f"silence of {replica}")
                self._asked[replica] = asking, now_s
        for replica in [each for each, (task, _) in self._asked.items() if each not in mute and task.done()]:
            del self._asked[replica]

    async def aclose(self) -> None:
        """Ask no more."""
        tasks = [task for task, _ in self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, replica: str, now_s: float) -> None:
        upstream = self._upstream(replica)
        if upstream is None or not await upstream.stands_still(_ANSWER_S):
            return
        if replica not in self._mute(time.monotonic()):
            return
        logger.info("%s neither reports nor answers: what waits there goes elsewhere", replica)
        upstream.lose("its processes are stopped", now_s)
