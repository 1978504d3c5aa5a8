"""Reading and writing frames on sockets: with an event loop (a visual server), and blocking (an encoder)."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from mmserve.visualserver.remote.frames import (
    LENGTH,
    SIGNATURE_NBYTES,
    BrokenEncoderLink,
    Direction,
    Message,
    message_nbytes,
)

_SINK_NBYTES = 256 << 10


class AsyncStream:
    """A non-blocking socket. One task reads, and one writes at a time. Raises BrokenEncoderLink at its end."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        sock.setblocking(False)
        self._sock, self._timeout_s = sock, timeout_s

    def close(self) -> None:
        """End the connection, which the task that reads then notices."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    async def fill(self, view: memoryview) -> None:
        """Receive straight into ``view``. The other end may be silent for the timeout, not longer."""
        loop = asyncio.get_running_loop()
        while view:
            try:
                async with asyncio.timeout(self._timeout_s):
                    received = await loop.sock_recv_into(self._sock, view)
            except TimeoutError:
                raise BrokenEncoderLink(f"nothing has come for {self._timeout_s:g} s") from None
            except OSError as error:
                raise BrokenEncoderLink(str(error)) from None
            if not received:
                raise BrokenEncoderLink("the connection has ended")
            view = view[received:]

    async def read(self, nbytes: int) -> bytes:
        data = bytearray(nbytes)
        await self.fill(memoryview(data))
        return bytes(data)

    async def skip(self, nbytes: int) -> None:
        """Receive and forget, so that the next frame can be read."""
        sink = memoryview(bytearray(min(nbytes, _SINK_NBYTES)))
        while nbytes:
            part = sink[: min(nbytes, len(sink))]
            await self.fill(part)
            nbytes -= len(part)

    async def message(self, direction: Direction) -> Message:
        data = await self.read(message_nbytes(await self.read(LENGTH.size)))
        return direction.message(data, await self.read(SIGNATURE_NBYTES))

    async def send(self, *parts: bytes | memoryview) -> None:
        loop = asyncio.get_running_loop()
        for part in parts:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await loop.sock_sendall(self._sock, part)
            except OSError as error:  # TimeoutError is one
                self.close()  # who reads must not go on: half a frame may have been sent
                raise BrokenEncoderLink(str(error) or f"nothing was taken for {self._timeout_s:g} s") from None


class Stream:
    """A blocking socket. One thread reads and one writes. Raises BrokenEncoderLink at its end."""

    def __init__(self, sock: socket.socket, timeout_s: float) -> None:
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock

    def read(self, nbytes: int) -> bytearray:
        data = bytearray(nbytes)
        view = memoryview(data)
        while view:
            try:
                received = self._sock.recv_into(view)
            except OSError as error:
                raise BrokenEncoderLink(str(error)) from None
            if not received:
                raise BrokenEncoderLink("the connection has ended")
            view = view[received:]
        return data

    def message(self, direction: Direction) -> Message:
        data = bytes(self.read(message_nbytes(bytes(self.read(LENGTH.size)))))
        return direction.message(data, bytes(self.read(SIGNATURE_NBYTES)))

    def close(self) -> None:
        """End the connection, which the other thread then notices."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def send(self, *parts: bytes | memoryview) -> None:
        try:
            for part in parts:
                self._sock.sendall(part)
        except OSError as error:
            raise BrokenEncoderLink(str(error)) from None
