"""HTTP/1.1 as uvicorn speaks it, with limits that it does not have: on a request's head, and on how long the rest of
a body that was answered already (413, 503) is read to let the client see that answer. Knows no route.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_NBYTES = 256 * 1024
MAX_DISCARDED_NBYTES = 64 << 20
"""Closing at once would reset the connection, and most clients would never see why."""
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class LimitedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request head, or refused body, goes on for ever."""

    _in_head = False
    _head_nbytes = 0
    _discarded_nbytes = 0

    def on_message_begin(self) -> None:
        self._in_head, self._head_nbytes, self._discarded_nbytes = True, 0, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle.response_complete:
            self._discarded_nbytes += len(body)
            if self._discarded_nbytes > MAX_DISCARDED_NBYTES:
                self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_nbytes += len(data)
            if self._head_nbytes > MAX_HEAD_NBYTES:
                self.transport.write(_TOO_LARGE)
                self.transport.close()
