"""uvicorn on the inherited socket: starts at once, refuses when told to drain, ends when live requests have ended.

Knows how a server starts and stops; knows no route.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from mmserve.config.process import Process
from mmserve.httpserver.app import make_app
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.protocol import LimitedHttpProtocol

_KEEP_ALIVE_S = 75
_DATE_EVERY_S = 1.0
_LAST_BYTES_S = 2.0
"""What connections get to take what was already written for them, at the very end."""


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: draining refuses requests first and closes the socket last."""

    def __init__(self, app: ASGIApp, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=LimitedHttpProtocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        )
        self._on_started = on_started
        self._drained = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        """Until drained. Woken only to renew the Date header, where uvicorn itself looks ten times as often."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_DATE_EVERY_S):
                    await self._drained.wait()

    async def drain(self, front: WorkerContext, timeout_s: float) -> None:
        """503 for new requests, time for live ones, then the end."""
        began_s = time.monotonic()
        front.gate.drain()
        await front.flights.finish(timeout_s)
        left_s = timeout_s - (time.monotonic() - began_s)
        self.config.timeout_graceful_shutdown = int(max(_LAST_BYTES_S, left_s))
        self.should_exit = True
        self._drained.set()


async def serve(process: Process, front: WorkerContext) -> None:
    """Serve ``front`` on the process's socket; returns after SIGTERM, when live requests have ended or timed out."""
    assert process.listen_fd is not None, "an http worker inherits the listening socket"
    server = Server(make_app(front), lambda: process.ready({}))
    drains: list[asyncio.Task[None]] = []

    def on_sigterm() -> None:
        if not drains:
            timeout_s = process.deployment.config.shutdown_timeout
            drains.append(asyncio.ensure_future(server.drain(front, timeout_s)))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
    await server.serve(sockets=[socket.socket(fileno=process.listen_fd)])
