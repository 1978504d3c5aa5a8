"""uvicorn's HTTP/1.1 protocol with additional limits, and with large bodies received directly into their final memory.

The limits are on the number of connections, on the time that a client may take, on the size of a request's head, and on
how much of a body is still read after its request was answered (413, 503). Reading on lets the client see that answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from mmserve.httpserver.http.body import DIRECT_BODY
from mmserve.httpserver.http.body_receiver import BodyReceiver, OnProgress
from mmserve.httpserver.http.connections import OpenConnections
from mmserve.httpserver.http.disconnect import DISCONNECT, LOST, watch_disconnect
from mmserve.httpserver.http.joined_head import JoinedHead
from mmserve.httpserver.http.parser import RequestParser
from mmserve.httpserver.http.timeouts import ConnectionTimeouts, Wait

MAX_HEAD_NBYTES = 64 * 1024
MAX_HEADERS = 256
"""A header takes a hundred times its length in memory if that is four bytes."""
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


class HeadTooLarge(Exception):
    """Raised through the parser, which then stops."""


class LimitedHttpProtocol(HttpToolsProtocol):
    """Refuses a connection too many, and closes one whose client is too slow or sends too long a head or refused body.

    Each request's scope has extensions: DIRECT_BODY receives a large body, DISCONNECT and LOST report the client's
    disconnect. ``connections`` has the limits; ``uvicorn`` are the arguments of uvicorn's protocol.
    """

    _in_head = False
    _in_body = False
    _discard_body = False
    """True while the parser is fed a part of a body whose receiver was cancelled."""
    _head_nbytes = 0
    _discarded_nbytes = 0

    def __init__(self, connections: OpenConnections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._open_connections = connections
        self._on_lost: set[Callable[[], None]] = set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._open_connections.full:
            return self._open_connections.refuse(transport)
        super().connection_made(transport)
        self._open_connections.add(self)
        self._timeouts = ConnectionTimeouts(transport, self._open_connections)
        self._timeouts.wait_for("idle")
        self.parser = RequestParser(self)
        self._reader = _HttpReader(self)
        transport.set_protocol(self._reader)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._open_connections.remove(self)
        self._timeouts.cancel()
        # They refer to this object: without them a closed connection is freed at once, not by a garbage collection.
        self.cycle = self.scope = None  # type: ignore[assignment]
        del self._reader
        self._tell_lost()

    @property
    def unsent_nbytes(self) -> int:
        """Bytes of answers that the kernel has not taken yet."""
        return self.transport.get_write_buffer_size()

    @property
    def _waits_for(self) -> Wait | None:
        """What the client must send now, or None while its request is worked on."""
        if self.transport.is_closing() or (self.cycle is not None and not self.cycle.response_complete):
            return None
        return "head" if self._in_head else "body" if self._in_body else "idle"

    def pause_writing(self) -> None:
        super().pause_writing()
        self._timeouts.watch_unread()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.cycle.response_complete:
            self._timeouts.watch_unread()
        else:
            self._timeouts.ignore_unread()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # replaced by the timers here, which data of a refused body does not end
        self._timeouts.wait_for(self._waits_for)
        self._timeouts.watch_unread()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self._timeouts.watch_unread()

    def on_message_begin(self) -> None:
        self._in_head, self._head_nbytes, self._discarded_nbytes = True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.headers) > MAX_HEADERS:
            raise HeadTooLarge
        self._in_head, self._in_body = False, True
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":
            self.cycle.transport = JoinedHead(self.transport)  # type: ignore[assignment]
        self.scope["extensions"] = {
            DIRECT_BODY: {
                "arrived": self._arrived_body,
                "receive": self._receive_body,
                "stall_s": self._open_connections.limits.body_s,
            },
            DISCONNECT: {"watch": partial(watch_disconnect, self.transport)},
            LOST: {"add": self._add_on_lost, "discard": self._on_lost.discard},
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
            self._in_body = False
            super().on_message_complete()

    def on_declined_complete(self) -> None:
        """End of a request that offered another protocol."""
        self._in_body = False
        super().on_message_complete()

    def on_trailing_data(self) -> None:
        """Data was discarded: close the connection after this response."""
        self.cycle.keep_alive = False
        if self.cycle.response_complete:
            self.transport.close()

    def data_received(self, data: bytes | memoryview) -> None:
        super().data_received(data)  # type: ignore[arg-type]  # httptools takes any buffer
        if self.transport.is_closing():
            return self._timeouts.watch_unread()
        if self._in_head:
            self._head_nbytes += len(data)
            if self._head_nbytes > MAX_HEAD_NBYTES or len(self.headers) > MAX_HEADERS:
                self._refuse_head()
        self._timeouts.wait_for(self._waits_for)

    def send_400_response(self, msg: str) -> None:
        """Called when the parser has failed."""
        if self._in_head and len(self.headers) > MAX_HEADERS:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        self._open_connections.count_close("head_too_large")
        self.transport.write(_TOO_LARGE)
        self.transport.close()

    def body_received(self) -> None:
        """The rest of a body has been received without the parser, which would copy it. A new parser reads the next
        request."""
        self._in_body = False
        super().on_message_complete()
        self.parser = RequestParser(self)

    def body_abandoned(self, part: memoryview) -> None:
        """Feed the parser ``part`` of a body whose receiver was cancelled, so that it can read on to the body's end."""
        if not self.transport.is_closing():
            self._discard_body = True
            self.data_received(part)
            self._discard_body = False

    def _add_on_lost(self, on_lost: Callable[[], None]) -> None:
        self._on_lost.add(on_lost)
        if self.cycle is None:
            self.loop.call_soon(self._tell_lost)
        else:
            self.flow.resume_reading()  # the end of a connection that is not read is not noticed

    def _tell_lost(self) -> None:
        while self._on_lost:
            self._on_lost.pop()()

    def _arrived_body(self) -> bytearray | None:
        """Takes the body of the current request if all of it has arrived."""
        cycle = self.cycle
        if cycle is None or cycle.more_body or self.pipeline:  # with a pipeline, ``cycle`` is that of a later request
            return None
        body, cycle.body = cycle.body, bytearray()
        return body

    async def _receive_body(self, prefix: bytes, nbytes: int, on_progress: OnProgress) -> bytearray:
        """Receive the body of the current request: ``nbytes`` in all, of which ``prefix`` was read already.

        The current cycle is this request's, since no later request is parsed before its body is complete. Raises
        ClientDisconnect.
        """
        prefix += self.cycle.body
        self.cycle.body = bytearray()
        self.flow.resume_reading()
        return await BodyReceiver(self._reader, self.transport, prefix, nbytes, on_progress).receive()
