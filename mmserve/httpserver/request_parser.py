"""httptools' parser for a server that speaks HTTP/1.1 alone: an offer of another protocol (Upgrade) is declined.

httptools ends such a request behind its head and leaves the rest to the other protocol. Declining means that it is a
request like any other, so its body is read here, by a second parser. Knows no connection and no route.
"""

from __future__ import annotations

from array import array
from typing import Protocol, TypeAlias

import httptools

Buffer: TypeAlias = "bytes | bytearray | memoryview | array[int]"
_FRAMING = (b"content-length", b"transfer-encoding")
"""The headers that say where a body ends."""


class Messages(Protocol):
    """Whom a parser tells what it finds, by httptools' methods and one more. ``headers``: of the message at hand, in
    lower case."""

    headers: list[tuple[bytes, bytes]]

    def on_body(self, body: bytes) -> None: ...
    def on_declined_complete(self) -> None: ...


class RequestParser(httptools.HttpRequestParser):
    """Reads one request behind the other. One that offers another protocol is its last: ``on_message_complete`` comes
    behind its head, while ``should_upgrade()``, and ``on_declined_complete`` behind its body."""

    def __init__(self, messages: Messages) -> None:
        super().__init__(messages)
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._messages = messages
        self._last: _Body | None = None

    def feed_data(self, data: Buffer) -> None:
        """Raises httptools.HttpParserError."""
        if self._last is not None:
            return self._last.feed_data(data)
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._last = _Body(self._messages)
            self._last.feed_data(data[upgrade.args[0] :])


class _Body:
    """One message's body, read behind a head that frames it alike. What comes behind it is nobody's."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._complete = False
        self._parser = httptools.HttpRequestParser(self)
        framing = (b"%b: %b" % header for header in messages.headers if header[0] in _FRAMING)
        self._parser.feed_data(b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""]))

    def feed_data(self, data: Buffer) -> None:
        try:
            if not self._complete:
                self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self._complete:
                raise

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._messages.on_body(body)

    def on_message_complete(self) -> None:
        if not self._complete:
            self._complete = True
            self._messages.on_declined_complete()
