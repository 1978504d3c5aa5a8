"""Serves one worker's app on the socket that the process inherited, and drains it on SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from contextlib import suppress

from mmserve.config.process import Process
from mmserve.httpserver.api.openai.errors import error_body
from mmserve.httpserver.app import make_app
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.connections import ConnectionLimits, OpenConnections
from mmserve.httpserver.http.uvicorn_server import UvicornServer
from mmserve.runtime.errors import Unavailable


async def serve(process: Process, context: WorkerContext) -> None:
    """Serve until SIGTERM; return when live requests have ended or timed out."""
    assert process.listen_fd is not None, "an http worker inherits the listening socket"
    limits = ConnectionLimits.of(process.deployment.config)
    refusal = Unavailable(f"{limits.max_connections} connections are open already (--max-connections)")
    connections = OpenConnections(limits, context.metrics, error_body(refusal))
    server = UvicornServer(make_app(context), lambda: process.ready({}), connections)
    drains: list[asyncio.Task[None]] = []

    def on_sigterm() -> None:
        if not drains:
            timeout_s = process.deployment.config.shutdown_timeout
            drains.append(asyncio.ensure_future(_drain(server, context, timeout_s)))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, on_sigterm)
    await server.serve(sockets=[socket.socket(fileno=process.listen_fd)])


async def _drain(server: UvicornServer, context: WorkerContext, timeout_s: float) -> None:
    """Refuse new requests with 503, let all admitted ones end, then close the socket and the connections.

    A request is admitted before its body is read, so bodies that are still arriving are waited for as well.
    """
    deadline_s = time.monotonic() + timeout_s
    context.admission.drain()
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await context.admission.idle()
    await context.request_tasks.close()
    server.stop(deadline_s - time.monotonic())
