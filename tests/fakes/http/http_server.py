"""The HTTP server alone, with any ASGI app behind it, and raw connections to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

from starlette.types import ASGIApp

from mmserve.httpserver.http.connections import ConnectionLimits, OpenConnections
from mmserve.httpserver.http.uvicorn_server import UvicornServer
from mmserve.monitoring.metrics.client import MetricsClient
from tests.fakes.processes.samples import Samples

REFUSAL = b'{"refused":true}'


@dataclass
class Serving:
    """A server that serves."""

    port: int
    connections: OpenConnections
    samples: Samples

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def closed(self, reason: str) -> float:
        """Connections that this limit has ended."""
        return self.samples.total("http_connections_closed", reason)


@asynccontextmanager
async def serving(app: ASGIApp, **limits: Any) -> AsyncIterator[Serving]:
    """``limits``: fields of ConnectionLimits."""
    samples, started = Samples(), asyncio.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    connections = OpenConnections(ConnectionLimits(**limits), cast(MetricsClient, samples), REFUSAL)
    server = UvicornServer(app, started.set, connections)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await started.wait()
    try:
        yield Serving(port, connections, samples)
    finally:
        server.stop(timeout_s=60)
        await task


async def answer_on(reader: asyncio.StreamReader) -> str:
    """The body of the next response."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
    return (await reader.readexactly(int(length.split(b":")[1]))).decode()
