"""uvicorn's server, with its signal handling and its polling loop replaced.

uvicorn is meant to be configured, not extended. This module and ``protocol`` override or read parts of it that are not
a public interface; pyproject.toml therefore pins uvicorn to one minor version, and
``tests/unit/httpserver/http/test_uvicorn_internals.py`` lists every such part.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmserve.httpserver.http.connections import OpenConnections
from mmserve.httpserver.http.protocol import LimitedHttpProtocol

_TICK_S = 1.0
_QUIET_S = 1.0
_MIN_FLUSH_S = 2.0
"""Shortest time at the end for connections to send what was already written to them."""


class UvicornServer(uvicorn.Server):
    """Serves ``app`` until ``stop``. Calls ``on_started`` once connections are accepted. Owns ``connections``.

    Signals are left to the caller: uvicorn's own handler would close the socket before live requests have ended.
    """

    def __init__(self, app: ASGIApp, on_started: Callable[[], None], connections: OpenConnections) -> None:
        super().__init__(
            uvicorn.Config(
                self._serve_request,
                interface="asgi3",
                http=partial(LimitedHttpProtocol, connections),  # type: ignore[arg-type]
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
            )
        )
        self._app = app
        self._retiring = False
        self._on_started = on_started
        self._connections = connections
        self._stopping = asyncio.Event()

    def stop(self, timeout_s: float) -> None:
        """End ``serve``: close the socket, and connections once their responses are sent or ``timeout_s`` is over."""
        self.config.timeout_graceful_shutdown = int(max(_MIN_FLUSH_S, timeout_s))
        self.should_exit = True
        self._stopping.set()

    async def retire(self, timeout_s: float) -> None:
        """End ``serve`` without a failed request, while another process accepts connections on the same socket or port.

        Each connection is closed after its next answer, or after _QUIET_S without a request: to close it at once could
        cross a request that is under way.
        """
        self._retiring = True
        for server in self.servers:
            server.close()
        await asyncio.sleep(_QUIET_S)
        self.stop(timeout_s)

    async def _serve_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if self._retiring and message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, send_last)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Wait for ``stop``. Wakes up once a second to renew the Date header; uvicorn's own loop wakes up ten times."""
        while not await self.on_tick(0):
            self._connections.report()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await self._stopping.wait()
