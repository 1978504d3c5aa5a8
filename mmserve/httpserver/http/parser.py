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
    """Whom a parser tells what it finds, by httptools' methods and two more. ``headers``: of the message at hand, in
    lower case."""

    headers: list[tuple[bytes, bytes]]

    def on_body(self, body: bytes) -> None: ...
    def on_declined_complete(self) -> None: ...
    def on_unread(self) -> None: ...


class RequestParser(httptools.HttpRequestParser):
    """Reads one request behind the other. Of one that offers another protocol ``on_message_complete`` comes behind its
    head, while ``should_upgrade()``, and ``on_declined_complete`` behind its body. What came together with that body's
    end cannot be told from it: ``on_unread``, and nothing is read any more."""

    def __init__(self, messages: Messages) -> None:
        super().__init__(messages)
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._messages = messages
        self._declined: _Body | None = None

    def feed_data(self, data: Buffer) -> None:
        """Raises httptools.HttpParserError."""
        if self._declined is None:
            try:
                return super().feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._declined = _Body(self._messages)
                data = data[upgrade.args[0] :]
        self._declined.feed_data(data)
        if self._declined.complete and not self._declined.goes_on:
            self._declined = None


class _Body:
    """One message's body, read behind a head that frames it alike."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self.complete = False
        self.goes_on = False
        """There is more behind it."""
        self._parser = httptools.HttpRequestParser(self)
        framing = (b"%b: %b" % header for header in messages.headers if header[0] in _FRAMING)
        self._parser.feed_data(b"\r\n".join([b"POST / HTTP/1.1", *framing, b"", b""]))

    def feed_data(self, data: Buffer) -> None:
        if self.complete:
            return self._more() if len(data) else None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.complete:
                raise
            self._more()

    def on_message_begin(self) -> None:
        if self.complete:
            self._more()

    def on_body(self, body: bytes) -> None:
        if not self.goes_on:
            self._messages.on_body(body)

    def on_message_complete(self) -> None:
        if not self.complete:
            self.complete = True
            self._messages.on_declined_complete()

    def _more(self) -> None:
        if not self.goes_on:
            self.goes_on = True
            self._messages.on_unread()
