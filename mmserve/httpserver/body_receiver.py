"""Receives one large body of known length from its connection straight into its final place in memory.

All bodies together take only so much of one turn of the event loop, so that many clients who upload at once do not
hold up everything else. Knows sockets and bytes, no HTTP: that is told to whoever had the connection before.
"""

from __future__ import annotations

import asyncio
import ctypes

from starlette.requests import ClientDisconnect

_TURN_NBYTES = 4 << 20
"""What may be read in one turn of the loop, all connections together: a millisecond or two."""
_MIN_READ_NBYTES = 64 * 1024
_MAX_READ_NBYTES = 1 << 20

# bytearray(n) writes zeros first: n bytes of memory for a client who has sent only a length so far, and milliseconds
# on the event loop. Nobody sees this one before all of it is received.
_unwritten = ctypes.pythonapi.PyByteArray_FromStringAndSize
_unwritten.argtypes, _unwritten.restype = (ctypes.c_char_p, ctypes.c_ssize_t), ctypes.py_object


class BodyReceiver(asyncio.BufferedProtocol):
    """One body; it is the transport's protocol, in the place of ``http``, while it receives."""

    num_receiving = 0
    """In this process, which has one event loop."""

    def __init__(self, http: asyncio.Protocol, transport: asyncio.Transport, begun: bytes, nbytes: int) -> None:
        self._http = http
        self._transport = transport
        self._body: bytearray = _unwritten(None, nbytes)
        self._view = memoryview(self._body)
        self._view[: len(begun)] = begun
        self._filled = len(begun)
        self._ended = asyncio.get_running_loop().create_future()

    async def receive(self) -> bytearray:
        """The body, when all of it is here. Raises ClientDisconnect."""
        BodyReceiver.num_receiving += 1
        try:
            if self._filled < len(self._view):
                self._transport.set_protocol(self)
                await self._ended
            if self._filled < len(self._view):
                raise ClientDisconnect
        finally:
            BodyReceiver.num_receiving -= 1
            self._give_back()
            # The transport may know its last BufferedProtocol for as long as it lives, so nothing may hang on that.
            body, self._body, self._view = self._body, bytearray(), memoryview(b"")
        return body

    def get_buffer(self, sizehint: int) -> memoryview:
        share = _TURN_NBYTES // max(1, BodyReceiver.num_receiving)
        nbytes = min(max(share, _MIN_READ_NBYTES), _MAX_READ_NBYTES)
        return self._view[self._filled : self._filled + nbytes]

    def buffer_updated(self, nbytes: int) -> None:
        part = self._view[self._filled : self._filled + nbytes]
        self._filled += nbytes
        # It is shown every byte, for it knows where the message ends.
        self._http.data_received(part)  # type: ignore[arg-type]  # httptools takes any buffer
        if self._filled == len(self._view):
            self._give_back()
            self._end()
        elif not self._transport.is_closing():
            # Otherwise the loop would read on from this connection as long as there is something to read.
            self._transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._http.connection_lost(error)
        self._end()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _give_back(self) -> None:
        """The connection to whoever had it, at once: the next byte belongs to the next request."""
        if self._transport.get_protocol() is self and not self._transport.is_closing():
            self._transport.set_protocol(self._http)

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
