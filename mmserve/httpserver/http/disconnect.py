"""Ends what nobody waits for any more: when a connection is lost, or its client disconnects while nothing is read.

While nothing is read, the kernel reports it by epoll (EPOLLRDHUP). It cannot while earlier data from the client fills
the socket's buffer: the end of the stream then waits behind that data on the client's machine. A reset is reported at
once.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

DISCONNECT = "mmserve.disconnect"
"""An ASGI extension: {"watch": function(on_disconnect)}, which is ``watch_disconnect`` of the request's connection."""
LOST = "mmserve.lost"
"""An ASGI extension: {"add": function(on_lost), "discard": function(on_lost)}. While it is added, the function
``on_lost`` is called by the event loop when the connection is lost, soon if it is lost already. To wait for this in
``receive()`` would take a task."""


class WhileConnected:
    """When the connection is lost: calls ``on_lost`` and cancels the body of the ``async with``, which ends without an
    error."""

    def __init__(self, scope: Scope, on_lost: Callable[[], None] = lambda: None) -> None:
        self._connection = scope["extensions"][LOST]
        self._on_lost = on_lost
        self._task: asyncio.Task[Any] | None = None
        self._lost = False

    async def __aenter__(self) -> None:
        self._task = asyncio.current_task()
        self._connection["add"](self._end)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._connection["discard"](self._end)
        if not self._lost:
            return False
        assert self._task is not None
        return self._task.uncancel() == 0 and kind is asyncio.CancelledError

    def _end(self) -> None:
        assert self._task is not None
        self._lost = True
        self._on_lost()
        self._task.cancel()


@asynccontextmanager
async def until_disconnect(request: Request) -> AsyncIterator[None]:
    """Cancel the body of the ``async with`` when the client disconnects, and raise ClientDisconnect."""
    watch = request.scope["extensions"][DISCONNECT]["watch"]
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as waiting:
            with watch(lambda: waiting.reschedule(loop.time())):
                yield
    except TimeoutError:
        if not waiting.expired():
            raise
        raise ClientDisconnect from None


@contextmanager
def watch_disconnect(transport: asyncio.Transport, on_disconnect: Callable[[], None]) -> Iterator[None]:
    """Call ``on_disconnect`` once if the client has closed the connection, or closes it within the context."""
    if transport.is_closing():
        on_disconnect()
        yield
        return
    loop = asyncio.get_running_loop()

    def disconnected() -> None:
        loop.remove_reader(epoll.fileno())
        on_disconnect()

    with ExitStack() as stack:
        # A duplicate, because the transport may close its own descriptor, which would end the watch silently.
        descriptor = os.dup(transport.get_extra_info("socket").fileno())
        stack.callback(os.close, descriptor)
        # An epoll of its own that reports only the end of the stream. The event loop's would report readable data too,
        # again in every iteration, since nothing reads it.
        epoll = stack.enter_context(select.epoll())
        epoll.register(descriptor, select.EPOLLRDHUP)
        loop.add_reader(epoll.fileno(), disconnected)
        stack.callback(loop.remove_reader, epoll.fileno())
        yield
