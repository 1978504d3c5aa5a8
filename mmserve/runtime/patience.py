"""Another try of a request, where one can help: when a server is full, or starting, or gone for a moment."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

_RETRIED = frozenset({429, 502, 503})
"""What a server answers that is full or starting."""
_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 20.0


class Reply(NamedTuple):
    """A whole response. ``request_id``: its x-request-id, if there is one."""

    status: int
    content: bytes
    request_id: str = ""


async def patiently(
    attempt: Callable[[], Awaitable[tuple[Reply, float]]],
    patience_s: float,
    passing: type[Exception] | tuple[()] = (),
    *,
    now: Callable[[], float] = time.monotonic,
) -> Reply:
    """Try until the reply is final or ``patience_s`` have passed. Returns or raises what the last attempt did.

    ``attempt`` returns a reply and the seconds after which the server wants to be asked again, 0 if it does not say.
    ``passing``: an exception after which another try may succeed.
    """
    deadline_s, pause_s = now() + patience_s, _FIRST_PAUSE_S
    while True:
        reply, failure, wished_s = None, None, 0.0
        try:
            reply, wished_s = await attempt()
            if reply.status not in _RETRIED:
                return reply
        except passing as error:
            failure = error
        # At random, so that requests refused together do not come back together.
        waited_s = min(max(wished_s, pause_s), _MAX_PAUSE_S) * random.uniform(0.5, 1.0)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        if now() + waited_s > deadline_s:
            if failure is not None:
                raise failure
            assert reply is not None
            return reply
        await asyncio.sleep(waited_s)
