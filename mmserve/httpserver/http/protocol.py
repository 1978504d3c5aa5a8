"""HTTP/1.1 as uvicorn speaks it, with limits that it does not have: on a request's head, and on how long the rest of
a body that was answered already (413, 503) is read to let the client see that answer. And large bodies go from the
socket to their place in memory at once. Knows no route.
"""

from __future__ import annotations

import asyncio
from functools import partial

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mmserve.httpserver.http.body import DIRECT_BODY
from mmserve.httpserver.http.body_receiver import BodyReceiver
from mmserve.httpserver.http.disconnect import HANG_UP, watched
from mmserve.httpserver.http.parser import RequestParser

MAX_HEAD_NBYTES = 256 * 1024
MAX_DISCARDED_NBYTES = 64 << 20
"""Closing at once would reset the connection, and most clients would never see why."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class _SmallReads(asyncio.BufferedProtocol):
    """Reads a connection for its HTTP protocol in small steps, through one buffer for all of them: what comes of a body
    together with its head is little."""

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

    def body_left(self, part: memoryview) -> None:
        self._http.body_left(part)


class LimitedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request head, or refused body, goes on for ever.

    Each request's scope has two extensions: with DIRECT_BODY its application receives a large body, with HANG_UP it is
    told that the client is gone.
    """

    _in_head = False
    _is_left = False
    """What the parser is shown of a body is nobody's any more."""
    _head_nbytes = 0
    _discarded_nbytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.parser = RequestParser(self)
        self._reads = _SmallReads(self)
        transport.set_protocol(self._reads)

    def on_message_begin(self) -> None:
        self._in_head, self._head_nbytes, self._discarded_nbytes = True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        self.scope["extensions"] = {
            DIRECT_BODY: {"receive": self._receive_body},
            HANG_UP: {"watched": partial(watched, self.transport)},
        }

    def on_body(self, body: bytes) -> None:
        if self._is_left:
            return
        super().on_body(body)
        if self.cycle.response_complete:
            self._discarded_nbytes += len(body)
            if self._discarded_nbytes > MAX_DISCARDED_NBYTES:
                self.transport.close()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():  # else the body is still to come
            super().on_message_complete()

    def on_declined_complete(self) -> None:
        """The end of a request that offered another protocol."""
        super().on_message_complete()

    def on_unread(self) -> None:
        """Something came that is not read: the answer is the connection's last."""
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
        """What was still missing of the body went past the parser, which would have copied it to show it to us; another
        one reads the next request."""
        super().on_message_complete()
        self.parser = RequestParser(self)

    def body_left(self, part: memoryview) -> None:
        """So much of the body has come, and whoever received it has given up: the parser has to know where it is."""
        if not self.transport.is_closing():
            self._is_left = True
            self.data_received(part)
            self._is_left = False

    async def _receive_body(self, begun: bytes, nbytes: int) -> bytearray:
        """The body of a request that says it has ``nbytes``, of which ``begun`` was read already.

        The last request that was read is this one, for its body is not complete. Raises ClientDisconnect.
        """
        begun += self.cycle.body
        self.cycle.body = bytearray()
        self.flow.resume_reading()
        return await BodyReceiver(self._reads, self.transport, begun, nbytes).receive()
