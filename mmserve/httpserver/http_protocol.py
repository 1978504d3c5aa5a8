"""HTTP/1.1 as uvicorn speaks it, with the limit on request heads that its parser does not have."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_NBYTES = 256 * 1024
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class LimitedHttpProtocol(HttpToolsProtocol):
    """Closes a connection whose request head goes on for ever; without this it would be gathered in memory."""

    _in_head = False
    _head_nbytes = 0

    def on_message_begin(self) -> None:
        self._in_head, self._head_nbytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_nbytes += len(data)
            if self._head_nbytes > MAX_HEAD_NBYTES:
                self.transport.write(_TOO_LARGE)
                self.transport.close()
