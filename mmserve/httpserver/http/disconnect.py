"""Ends a wait when the client hangs up, though nothing is read from its connection meanwhile.

The kernel tells, as soon as it knows. It does not know while what the client had sent before fills the socket: the end
of the stream queues behind that, in the client's machine. A reset overtakes it.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from starlette.requests import ClientDisconnect, Request

HANG_UP = "mmserve.hang_up"
"""An ASGI extension: {"watched": function(on_hang_up)}, which is ``watched`` of the request's own connection."""


@asynccontextmanager
async def connected(request: Request) -> AsyncIterator[None]:
    """Raises ClientDisconnect out of what is awaited in it, as soon as the client is known to be gone."""
    watched = request.scope["extensions"][HANG_UP]["watched"]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as waiting:
            with watched(lambda: waiting.reschedule(loop.time())):
                yield
    except TimeoutError:
        if not waiting.expired():
            raise
        raise ClientDisconnect from None


@contextmanager
def watched(transport: asyncio.Transport, on_hang_up: Callable[[], None]) -> Iterator[None]:
    """Calls ``on_hang_up`` once if the other side has closed the connection, or does so meanwhile."""
    if transport.is_closing():
        on_hang_up()
        yield
        return
    loop = asyncio.get_running_loop()

    def hung_up() -> None:
        loop.remove_reader(epoll.fileno())
        on_hang_up()

    with ExitStack() as held:
        # A duplicate: the transport may close its own, and then nothing more is told of that.
        twin = os.dup(transport.get_extra_info("socket").fileno())
        held.callback(os.close, twin)
        # The loop would tell of bytes to read, again and again; an epoll of its own tells of the end alone.
        epoll = held.enter_context(select.epoll())
        epoll.register(twin, select.EPOLLRDHUP)
        loop.add_reader(epoll.fileno(), hung_up)
        held.callback(loop.remove_reader, epoll.fileno())
        yield
