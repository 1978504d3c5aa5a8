"""HTTP/1.1 to one replica: a connection for each request, an answer whose body is read as it comes.

So each request finds out within a second that a replica is not there any more, and none is sent on a connection that
the replica has just closed. A replica that dies resets its connections at once. One that is cut off says nothing: TCP
keep-alive ends the connection after three seconds without a word from its machine. The kernel does not ask while bytes
are on their way, and a limit of its own (TCP_USER_TIMEOUT) would also end a connection to a replica that lets a body
wait. So after three seconds in which none of the body has arrived, the front tries whether the replica can be reached.
One whose processes are stopped keeps its connections, for its machine answers for it: ``lose`` ends them.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import cast
from urllib.parse import urlsplit

import httptools

from mmserve.cluster.front.request.headers import Headers

CONNECT_TIMEOUT_S = 1.0
_KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, 2))
SILENT_S = 3.0
"""Without progress of a body that is on its way."""
_HIGH_NBYTES = 256 * 1024
"""Unread bytes from which on the connection is not read from: a slow client holds up its replica."""


class ReplicaLost(Exception):
    """The connection failed or ended before the whole answer. ``sent``: the request may have been read."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class Upstream:
    """One replica at ``url``. Raises ValueError for another URL than ``http://HOST:PORT``."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/"):
            raise ValueError(f"{url} is no address of a replica: write it as http://HOST:PORT")
        self.url = url.rstrip("/")
        self.host_header = parts.netloc.encode()
        self._address = parts.hostname, parts.port or 80
        self._may_move: set[_Connection] = set()

    async def send(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: Sequence[bytes | memoryview] = (),
        *,
        may_move: bool = False,
    ) -> UpstreamAnswer:
        """Send a request, and return when its answer's head has come. ``may_move``: ``lose`` ends it. Raises
        ReplicaLost."""
        head = _head(method, target, self.host_header, headers, sum(map(len, body)))
        connection = await self._connect()
        if may_move:
            self._may_move.add(connection)
            connection.on_close = self._may_move.discard
        try:
            await connection.request([head, *body], self._can_be_reached)
        except BaseException:
            connection.close()
            raise
        return UpstreamAnswer(connection)

    async def stands_still(self, within_s: float) -> bool:
        """True if nothing answers within that time. False if it cannot be reached: its connections notice that."""
        try:
            async with asyncio.timeout(within_s):
                (await self.send("GET", b"/live", [])).close()
        except ReplicaLost:
            return False
        except TimeoutError:
            return True
        return False

    def lose(self, reason: str, heard_before_s: float) -> None:
        """End the requests that may move, of which nothing has come since that time (monotonic)."""
        for connection in [*self._may_move]:
            if connection.heard_s < heard_before_s:
                connection.lose(reason)

    async def _can_be_reached(self) -> bool:
        try:
            (await self._connect()).close()
        except ReplicaLost:
            return False
        return True

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                transport, connection = await asyncio.get_running_loop().create_connection(_Connection, *self._address)
            _keep_alive(transport.get_extra_info("socket"))
        except (OSError, TimeoutError) as error:
            raise ReplicaLost(f"{self.url} cannot be reached: {error}", sent=False) from None
        return connection


class UpstreamAnswer:
    """``parts`` yields the body. Call ``close`` at the end, however it came."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self.status = connection.status
        self.headers = connection.headers

    async def parts(self) -> AsyncIterator[bytes]:
        """Raises ReplicaLost if it ends early."""
        while (part := await self._connection.part()) is not None:
            yield part

    def close(self) -> None:
        """End the connection, and give up what is unread of the answer. Idempotent."""
        self._connection.close()


class _Connection(asyncio.Protocol):
    """Of one request."""

    def __init__(self) -> None:
        self.heard_s = time.monotonic()
        """When it was made, or bytes came."""
        self.on_close: Callable[[_Connection], None] = lambda connection: None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parts: deque[bytes] = deque()
        self._unread_nbytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._has_head = self._complete = self._is_head = False
        self._lost: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)

    async def request(self, data: Sequence[bytes | memoryview], can_be_reached: Callable[[], Awaitable[bool]]) -> None:
        """Send ``data``, the head first, and wait for the answer's head."""
        self._is_head = bytes(data[0][:5]) == b"HEAD "
        for part in data:
            if part:
                self._transport.write(part)
        while not self._has_head:
            before = self._under_way_nbytes()
            try:
                async with asyncio.timeout(SILENT_S if before else None):
                    await self._change()
            except TimeoutError:
                if self._under_way_nbytes() >= before and not await can_be_reached():
                    raise ReplicaLost("its machine takes nothing of the body any more", sent=True) from None

    def _under_way_nbytes(self) -> int:
        """Bytes that the replica's machine has not confirmed."""
        if self._lost is not None:
            return 0
        fd = self._transport.get_extra_info("socket").fileno()
        (of_kernel,) = _INT.unpack(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(_INT.size)))
        return int(of_kernel) + self._transport.get_write_buffer_size()

    async def part(self) -> bytes | None:
        """The next bytes of the body; None at its end."""
        while not self._parts:
            if self._complete:
                return None
            await self._change()
        data = b"".join(self._parts)
        self._parts.clear()
        if self._unread_nbytes > _HIGH_NBYTES and self._lost is None:
            self._transport.resume_reading()
        self._unread_nbytes = 0
        return data

    def lose(self, reason: str) -> None:
        self._lost = self._lost or reason
        self._transport.abort()
        self._wake()

    def close(self) -> None:
        self._transport.abort()
        self.on_close(self)

    async def _change(self) -> None:
        if self._lost is not None:
            raise ReplicaLost(self._lost, sent=True)
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.lose(f"what came is no HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        closed = error is None and self._lost is None
        ends_with_connection = self._has_head and closed and not self._parser.should_keep_alive()
        if ends_with_connection and not any(name in _FRAMING for name, _ in self.headers):
            self._complete = True
        self._lost = self._lost or f"the connection ended: {error or 'closed'}"
        self._wake()

    # of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self._has_head = self.status >= 200
        if self._is_head and self._has_head:  # the parser would wait for the body that the length speaks of
            self._complete = True
        if not self._has_head:
            self.headers = []
        self._wake()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        before, self._unread_nbytes = self._unread_nbytes, self._unread_nbytes + len(data)
        if before <= _HIGH_NBYTES < self._unread_nbytes:
            self._transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        if self._has_head:
            self._complete = True
            self._wake()


def _keep_alive(connection: socket.socket) -> None:
    """Raises OSError if it has been lost and closed meanwhile."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


_INT = struct.Struct("i")
_FRAMING = (b"content-length", b"transfer-encoding")


def _head(method: str, target: bytes, host: bytes, headers: Headers, nbytes: int) -> bytes:
    lines = [method.encode() + b" " + target + b" HTTP/1.1", b"host: " + host]
    lines += [name + b": " + value for name, value in headers]
    if nbytes or method in ("POST", "PUT", "PATCH"):
        lines.append(b"content-length: %d" % nbytes)
    return b"\r\n".join([*lines, b"", b""])
