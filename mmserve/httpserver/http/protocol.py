"""uvicorn's HTTP/1.1 protocol with additional limits, and with large bodies received directly into their final memory.

The limits are on the size of a request's head, and on how much of a body is still read after its request was answered
(413, 503). Reading on lets the client see that answer.
"""

from __future__ import annotations

import asyncio
from functools import partial

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mmserve.httpserver.http.body import DIRECT_BODY
from mmserve.httpserver.http.body_receiver import BodyReceiver
from mmserve.httpserver.http.disconnect import DISCONNECT, watch_disconnect
from mmserve.httpserver.http.parser import RequestParser

MAX_HEAD_NBYTES = 256 * 1024
MAX_DISCARDED_NBYTES = 64 << 20
"""Closing at once would reset the connection, and most clients would then report the reset instead of the answer."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class _HttpReader(asyncio.BufferedProtocol):
    """The transport's protocol while HTTP is parsed: reads in small steps into one buffer that all connections share.

    Small steps, because the part of a large body that is read together with its head is copied once more.
    """

    _buffer = memoryview(bytearray(32 * 1024))

    def __init__(self, http: LimitedHttpProtocol) -> None:
        self._http = http
        self.eof_received = http.eof_received  # type: ignore[method-assign]
        self.connection_lost = http.connection_lost  # type: ignore[method-assign]
        self.pause_writing = http.pause_writing  # type: ignore[method-assign]
        self.resume_writing = http.resume_writing  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self._buffer[:nbytes])

    def data_received(self, data: memoryview) -> None:
        self._http.data_received(data)

    def body_received(self) -> None:
        self._http.body_received()

    def body_abandoned(self, part: memoryview) -> None:
        self._http.body_abandoned(part)


class LimitedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request head, or refused body, exceeds its limit.

    Each request's scope has two extensions: DIRECT_BODY receives a large body, DISCONNECT reports the client's
    disconnect.
    """

    _in_head = False
    _discard_body = False
    """True while the parser is fed a part of a body whose receiver was cancelled."""
    _head_nbytes = 0
    _discarded_nbytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = RequestParser(self)
        self._reader = _HttpReader(self)
        transport.set_protocol(self._reader)

    def on_message_begin(self) -> None:
        self._in_head, self._head_nbytes, self._discarded_nbytes = True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        self.scope["extensions"] = {
            DIRECT_BODY: {"receive": self._receive_body},
            DISCONNECT: {"watch": partial(watch_disconnect, self.transport)},
        }

    def on_body(self, body: bytes) -> None:
        if self._discard_body:
            return
        super().on_body(body)
        if self.cycle.response_complete:
            self._discarded_nbytes += len(body)
            if self._discarded_nbytes > MAX_DISCARDED_NBYTES:
                self.transport.close()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # else this is the end of the head, and the body follows
            super().on_message_complete()

    def on_declined_complete(self) -> None:
        """End of a request that offered another protocol."""
        super().on_message_complete()

    def on_trailing_data(self) -> None:
        """Data was discarded: close the connection after this response."""
        self.cycle.keep_alive = False
        if self.cycle.response_complete:
            self.transport.close()

    def data_received(self, data: bytes | memoryview) -> None:
        super().data_received(data)  # type: ignore[arg-type]  # httptools takes any buffer
        if self._in_head and not self.transport.is_closing():
            self._head_nbytes += len(data)
            if self._head_nbytes > MAX_HEAD_NBYTES:
                self.transport.write(_TOO_LARGE)
                self.transport.close()

    def body_received(self) -> None:
        """The rest of a body has been received without the parser, which would copy it. A new parser reads the next
        request."""
        super().on_message_complete()
        self.parser = RequestParser(self)

    def body_abandoned(self, part: memoryview) -> None:
        """Feed the parser ``part`` of a body whose receiver was cancelled, so that it can read on to the body's end."""
        if not self.transport.is_closing():
            self._discard_body = True
            self.data_received(part)
            self._discard_body = False

    async def _receive_body(self, prefix: bytes, nbytes: int) -> bytearray:
        """Receive the body of the current request: ``nbytes`` in all, of which ``prefix`` was read already.

        The current cycle is this request's, since no later request is parsed before its body is complete. Raises
        ClientDisconnect.
        """
        prefix += self.cycle.body
        self.cycle.body = bytearray()
        self.flow.resume_reading()
        return await BodyReceiver(self._reader, self.transport, prefix, nbytes).receive()
