"""One status page of a process with an event loop, on a Unix socket. Made anew for each request.

As much of HTTP as ``status_client.read_page`` needs: the run directory lets nobody else connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

_TIMEOUT_S = 10.0
"""For a connection, from its first byte to its last."""


@asynccontextmanager
async def serving_page(path: Path, make: Callable[[], Awaitable[bytes]]) -> AsyncIterator[None]:
    """Answer each request on a new socket with the JSON that ``make`` returns, until the block ends."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(_TIMEOUT_S):
                    await reader.readuntil(b"\r\n\r\n")
                    body = await make()
                    head = f"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                    writer.write(head.encode() + body)
                    await writer.drain()
        finally:
            writer.close()

    with _removing(path):
        server = await asyncio.start_unix_server(answer, path)  # in place of the socket of a process that was killed
        try:
            yield
        finally:
            server.close()


@contextmanager
def _removing(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
