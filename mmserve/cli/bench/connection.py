"""One HTTP/1.1 request on a connection of its own, with the time at which each line of the answer arrived.

A general client spends more time on a small event than a server that is measured: its reading would be a part of the
figures. A connection of its own for each request: llama-server closes connections after a stream without announcing it.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

OnLine = Callable[[bytes, float], None]
"""on_line(line, now_s): a line of a body with status 200, and the time by ``time.perf_counter``."""


class BrokenConnection(Exception):
    """The connection ended in the middle of an answer, or what came is no HTTP."""


@dataclass(frozen=True)
class Url:
    host: str
    port: int
    target: str
    is_secure: bool

    @classmethod
    def parse(cls, url: str) -> Url:
        """Raises ValueError for what is no URL of HTTP."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url} is no URL of HTTP")
        is_secure = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if is_secure else 80), parts.path or "/", is_secure)


@dataclass
class Answered:
    """``content``: of an answer with another status than 200."""

    status: int = 0
    content: bytes = b""


async def post(url: Url, payload: bytes, api_key: str | None, on_line: OnLine) -> Answered:
    """Send JSON and read the whole answer. Raises OSError, BrokenConnection, and what ``on_line`` raises."""
    loop = asyncio.get_running_loop()
    context = ssl.create_default_context() if url.is_secure else None
    transport, answer = await loop.create_connection(
        lambda: _Answer(loop.create_future(), on_line), url.host, url.port, ssl=context
    )
    try:
        transport.write(_head(url, len(payload), api_key) + payload)
        return await answer.done
    finally:
        transport.abort()


def _head(url: Url, nbytes: int, api_key: str | None) -> bytes:
    host = f"[{url.host}]" if ":" in url.host else url.host
    lines = [
        f"POST {url.target} HTTP/1.1",
        f"host: {host}:{url.port}",
        "content-type: application/json",
        f"content-length: {nbytes}",
        "accept: text/event-stream",
        "connection: close",
        *([f"authorization: Bearer {api_key}"] if api_key else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode()


@dataclass
class _Answer(asyncio.Protocol):
    """Parses what arrives. ``done``: the whole answer."""

    done: asyncio.Future[Answered]
    on_line: OnLine
    _answered: Answered = field(default_factory=Answered)
    _rest: bytes = b""

    def __post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ if isinstance(error.__context__, Exception) else error)
        except httptools.HttpParserError as error:
            self._fail(BrokenConnection(f"no HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        """Also the end of an answer that has neither a length nor chunks."""
        if self._answered.status and error is None and not self._parser.should_keep_alive():
            self._finish()
        self._fail(error or BrokenConnection("the connection ended before the answer"))

    # of the parser

    def on_headers_complete(self) -> None:
        self._answered.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        if self._answered.status != 200:
            self._answered.content += body
            return
        *lines, self._rest = (self._rest + body).split(b"\n")
        for line in lines:
            self.on_line(line, time.perf_counter())

    def on_message_complete(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(self._answered)

    def _fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)
