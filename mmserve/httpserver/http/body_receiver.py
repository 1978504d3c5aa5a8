"""Receives one large body of known length from its connection directly into its final place in memory.

If many clients upload at once, each iteration of the event loop reads from a few connections, earliest request first.
The loop stays responsive, and bodies complete one after another instead of all at the end. A slow client delays no
other: its connection leaves the queue as soon as its reading is resumed, and returns to it when data has arrived.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
from bisect import insort
from collections.abc import Callable
from typing import Protocol, cast

from starlette.requests import ClientDisconnect

_READ_NBYTES = 1 << 20
_ALLOC_UNIT_NBYTES = 64 * 1024
"""Sizes are rounded up, so that the allocator can reuse one body's memory for a slightly longer one."""
_READS_PER_ITERATION = 4
"""Connections that may read in one iteration of the event loop: together they take it one or two milliseconds."""

OnProgress = Callable[[int], None]
"""on_progress(bytes of the body that have arrived)"""

# bytearray(n) writes zeros, which takes milliseconds on the event loop and makes the kernel allocate all pages for a
# client that has sent only a length so far. This one stays uninitialised until it is overwritten by the body.
_uninitialised_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_uninitialised_bytearray.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)
_uninitialised_bytearray.restype = ctypes.py_object


class HttpReader(Protocol):
    """The transport's protocol before and after the body."""

    def body_received(self) -> None:
        """The whole body was received."""

    def body_abandoned(self, part: memoryview) -> None:
        """The receiver was cancelled. ``part``: what it had received after the prefix."""

    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class _ReadQueue:
    """Receivers waiting to read, earliest first. One for the process, which has one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, BodyReceiver]] = []

    def next_number(self) -> int:
        return next(self._numbers)

    def add(self, number: int, receiver: BodyReceiver) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._resume_first)
        insort(self._waiting, (number, receiver))

    def _resume_first(self) -> None:
        first, self._waiting = self._waiting[:_READS_PER_ITERATION], self._waiting[_READS_PER_ITERATION:]
        for _, receiver in first:
            receiver.resume()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._resume_first)


_read_queue = _ReadQueue()


class BodyReceiver(asyncio.BufferedProtocol):
    """Receives one body of ``nbytes``, of which ``prefix`` was read already.

    Replaces ``http`` as the transport's protocol until the body is complete.
    """

    def __init__(
        self, http: HttpReader, transport: asyncio.Transport, prefix: bytes, nbytes: int, on_progress: OnProgress
    ) -> None:
        self._http = http
        self._on_progress = on_progress
        self._transport = transport
        self._prefix, self._nbytes = prefix, nbytes
        self._parsed_nbytes = self._filled = len(prefix)
        self._body, self._view = bytearray(), memoryview(b"")
        self._done = asyncio.get_running_loop().create_future()
        self._number = _read_queue.next_number()

    async def receive(self) -> bytearray:
        """The complete body. Raises ClientDisconnect."""
        try:
            self._transport.set_protocol(self)
            self._queue_read()
            await self._done
            if self._filled < self._nbytes:
                raise ClientDisconnect
        finally:
            self._restore_http()
            # Some of the body, but not all, was read past the HTTP parser: hand that part to the parser.
            if self._parsed_nbytes < self._filled < self._nbytes:
                self._http.body_abandoned(self._view[self._parsed_nbytes : self._filled])
            # The transport may keep a reference to this protocol as long as it lives, so drop the memory.
            body, self._body, self._view = self._body, bytearray(), memoryview(b"")
        return body

    def get_buffer(self, sizehint: int) -> memoryview:
        if not self._view:
            self._allocate()
        return self._view[self._filled : self._filled + _READ_NBYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == self._nbytes:
            self._restore_http()
            self._http.body_received()
            self._finish()
        else:
            self._on_progress(self._filled)
            self._queue_read()

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._http.connection_lost(error)
        self._finish()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def resume(self) -> None:
        """Called by the queue: read once."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _allocate(self) -> None:
        """Allocate when the first data arrives, so that bodies received one after another reuse the same memory.

        Allocating all of them at once would fragment the heap.
        """
        self._body = _uninitialised_bytearray(None, -(-self._nbytes // _ALLOC_UNIT_NBYTES) * _ALLOC_UNIT_NBYTES)
        del self._body[self._nbytes :]  # shortens it without giving memory back
        self._view = memoryview(self._body)
        self._view[: self._filled], self._prefix = self._prefix, b""

    def _queue_read(self) -> None:
        """Pause reading until the queue resumes it: the event loop would otherwise read this connection without end."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            _read_queue.add(self._number, self)

    def _restore_http(self) -> None:
        """Make ``http`` the transport's protocol again, before the next request's first byte is read."""
        if self._transport.get_protocol() is self and not self._transport.is_closing():
            self._transport.set_protocol(cast(asyncio.BaseProtocol, self._http))

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
