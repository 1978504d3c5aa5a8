"""httptools' request parser for a server that speaks only HTTP/1.1 and declines offers of another protocol (Upgrade).

httptools stops after the head of a request with an Upgrade header and leaves the rest to the new protocol. Declining
means to serve it like any other request, so its body is parsed here by a second parser.
"""

from __future__ import annotations

from array import array
from typing import Protocol, TypeAlias

import httptools

Buffer: TypeAlias = "bytes | bytearray | memoryview | array[int]"
_FRAMING = (b"content-length", b"transfer-encoding")
"""Headers that define where a body ends."""


class ParserCallbacks(Protocol):
    """httptools' callbacks and two more. ``headers``: those of the current request, names in lower case."""

    headers: list[tuple[bytes, bytes]]

    def on_body(self, body: bytes) -> None: ...
    def on_declined_complete(self) -> None:
        """The body of a request with an Upgrade header is complete."""

    def on_trailing_data(self) -> None:
        """Data after such a body was discarded; no further request can be read."""


class RequestParser(httptools.HttpRequestParser):
    """Parses one request after another.

    For a request with an Upgrade header, ``on_message_complete`` is called after its head, while ``should_upgrade()``
    is true, and ``on_declined_complete`` after its body. Data that arrives together with the end of that body cannot be
    told apart from it: it causes ``on_trailing_data`` and is discarded.
    """

    def __init__(self, callbacks: ParserCallbacks) -> None:
        super().__init__(callbacks)
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._callbacks = callbacks
        self._declined: _DeclinedBody | None = None

    def feed_data(self, data: Buffer) -> None:
        """Raises httptools.HttpParserError."""
        if self._declined is None:
            try:
                return super().feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._declined = _DeclinedBody(self._callbacks)
                data = data[upgrade.args[0] :]
        self._declined.feed_data(data)
        if self._declined.complete and not self._declined.has_trailing_data:
            self._declined = None


class _DeclinedBody:
    """Parses the body of a request with an Upgrade header, as the body of a made-up request with the same framing."""

    def __init__(self, callbacks: ParserCallbacks) -> None:
        self._callbacks = callbacks
        self.complete = False
        self.has_trailing_data = False
        self._parser = httptools.HttpRequestParser(self)
        framing = (b"%b: %b" % header for header in callbacks.headers if header[0] in _FRAMING)
        self._parser.feed_data(b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""]))

    def feed_data(self, data: Buffer) -> None:
        if self.complete:
            return self._trailing_data() if len(data) else None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.complete:
                raise
            self._trailing_data()

    def on_message_begin(self) -> None:
        if self.complete:
            self._trailing_data()

    def on_body(self, body: bytes) -> None:
        if not self.has_trailing_data:
            self._callbacks.on_body(body)

    def on_message_complete(self) -> None:
        if not self.complete:
            self.complete = True
            self._callbacks.on_declined_complete()

    def _trailing_data(self) -> None:
        if not self.has_trailing_data:
            self.has_trailing_data = True
            self._callbacks.on_trailing_data()
