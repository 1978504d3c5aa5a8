"""Receives one large body of known length from its connection straight into its final place in memory.

Of many clients who upload at once a few are read in one turn of the event loop, the earliest first: so nothing else is
held up, and bodies are complete one after another and not all together. A client that sends slowly holds up nobody.
Knows sockets and bytes, no HTTP: that is told to whoever had the connection before.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
from bisect import insort
from typing import Protocol, cast

from starlette.requests import ClientDisconnect

_READ_NBYTES = 1 << 20
_ROUNDED_TO_NBYTES = 64 * 1024
"""Where one body was, the next one fits, though it be a little longer."""
_READS_IN_A_TURN = 4
"""A millisecond or two of the loop."""

# bytearray(n) writes zeros first: n bytes of memory for a client who has sent only a length so far, and milliseconds
# on the event loop. Nobody sees this one before all of it is received.
_unwritten = ctypes.pythonapi.PyByteArray_FromStringAndSize
_unwritten.argtypes, _unwritten.restype = (ctypes.c_char_p, ctypes.c_ssize_t), ctypes.py_object


class Reads(Protocol):
    """A transport's protocol that can also be told what others have read for it."""

    def body_received(self) -> None: ...
    def body_left(self, part: memoryview) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class _Line:
    """Bodies of which there may be more to read, the earliest first; of this process, which has one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, BodyReceiver]] = []

    def number(self) -> int:
        return next(self._numbers)

    def join(self, number: int, body: BodyReceiver) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        insort(self._waiting, (number, body))

    def _turn(self) -> None:
        first, self._waiting = self._waiting[:_READS_IN_A_TURN], self._waiting[_READS_IN_A_TURN:]
        for _, body in first:
            body.read_on()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._turn)


_line = _Line()


class BodyReceiver(asyncio.BufferedProtocol):
    """One body, of which a part is still to come; it is the transport's protocol, in the place of ``http``, while it
    receives."""

    def __init__(self, http: Reads, transport: asyncio.Transport, begun: bytes, nbytes: int) -> None:
        self._http = http
        self._transport = transport
        self._begun, self._nbytes = begun, nbytes
        self._shown = self._filled = len(begun)
        self._body, self._view = bytearray(), memoryview(b"")
        self._ended = asyncio.get_running_loop().create_future()
        self._number = _line.number()

    async def receive(self) -> bytearray:
        """The body, when all of it is here. Raises ClientDisconnect."""
        try:
            self._transport.set_protocol(self)
            self._wait_in_line()
            await self._ended
            if self._filled < self._nbytes:
                raise ClientDisconnect
        finally:
            self._give_back()
            if self._shown < self._filled < self._nbytes:
                self._http.body_left(self._view[self._shown : self._filled])
            # The transport may know its last BufferedProtocol for as long as it lives, so nothing may hang on that.
            body, self._body, self._view = self._body, bytearray(), memoryview(b"")
        return body

    def get_buffer(self, sizehint: int) -> memoryview:
        if not self._view:
            self._take_memory()
        return self._view[self._filled : self._filled + _READ_NBYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == self._nbytes:
            self._give_back()
            self._http.body_received()
            self._end()
        else:
            self._wait_in_line()

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._http.connection_lost(error)
        self._end()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def read_on(self) -> None:
        """It is this body's turn."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _take_memory(self) -> None:
        """Not before something comes: so the next body in line finds a place that one before it has left, instead of
        places for all of them that, once left, lie scattered between what became of them."""
        self._body = _unwritten(None, -(-self._nbytes // _ROUNDED_TO_NBYTES) * _ROUNDED_TO_NBYTES)
        del self._body[self._nbytes :]  # the memory stays its own
        self._view = memoryview(self._body)
        self._view[: self._filled], self._begun = self._begun, b""

    def _wait_in_line(self) -> None:
        """The loop would read on from this connection as long as there is something to read."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            _line.join(self._number, self)

    def _give_back(self) -> None:
        """The connection to whoever had it, at once: the next byte belongs to the next request."""
        if self._transport.get_protocol() is self and not self._transport.is_closing():
            self._transport.set_protocol(cast(asyncio.BaseProtocol, self._http))

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
