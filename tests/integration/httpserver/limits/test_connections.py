"""Limits of connections in number and time, on real sockets: who is cut, and who never is."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mmserve.httpserver.http.body import PROGRESS_NBYTES, read_body
from mmserve.runtime.errors import TooSlow
from tests.fakes.http.http_server import REFUSAL, Serving, answer_on, serving
from tests.fakes.http.http_worker import run

SHORT_S = 0.1
NEVER_S = 600.0
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNK = b"x" * 65536


class App:
    """Answers ``ok``; ``/length`` reads the body and answers its length; ``/endless`` sends until its client is gone;
    ``/slow`` sends a part at each ``advance``."""

    def __init__(self) -> None:
        self.advance = asyncio.Queue[bytes]()
        self.num_sent = 0
        self.ended = asyncio.Event()
        self.cut = False
        """The last answer ended before it was complete."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers = {"/endless": self._endless, "/slow": self._slow}
        if scope["path"] in answers:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await answers[scope["path"]](receive, send)
            return self.ended.set()
        body = "ok"
        if scope["path"] == "/length":
            try:
                body = str(len(await read_body(Request(scope, receive), 1 << 30)))
            except TooSlow:
                body = "too slow"
        await Response(body)(scope, receive, send)

    async def _endless(self, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_gone(receive))
        while not gone.done():
            sending = asyncio.ensure_future(send({"type": "http.response.body", "body": CHUNK, "more_body": True}))
            await asyncio.wait((sending, gone), return_when=asyncio.FIRST_COMPLETED)
            self.num_sent += sending.done()
            sending.cancel()
        self.cut = True

    async def _slow(self, receive: Receive, send: Send) -> None:
        while part := await self.advance.get():
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def with_server(test: Callable[[Serving, App], Awaitable[None]], **limits: float) -> None:
    """Run ``test`` with a server whose other limits are never reached."""

    async def go() -> None:
        app = App()
        times = dict.fromkeys(("idle_s", "head_s", "body_s", "unread_s"), NEVER_S)
        async with asyncio.timeout(20), serving(app, **times | limits) as server:
            await test(server, app)

    run(go)


@pytest.mark.parametrize("start", [b"G", b"GET / HTTP/1.1\r\n", GET[:-2]], ids=["a byte", "a line", "all but the end"])
def test_half_a_head_is_closed_even_if_more_of_it_trickles_in(start: bytes) -> None:
    async def test(server: Serving, app: App) -> None:
        reader, writer = await server.connect()
        writer.write(start)
        closed = asyncio.ensure_future(reader.read())
        while not closed.done():
            if start.endswith(b"\n"):
                writer.write(b"x-more: 1\r\n")
            await asyncio.wait([closed], timeout=SHORT_S / 4)
        assert server.closed("head_timeout") == 1
        writer.close()

    with_server(test, head_s=SHORT_S)


def test_a_head_that_follows_an_answer_has_the_same_limit() -> None:
    async def test(server: Serving, app: App) -> None:
        reader, writer = await server.connect()
        writer.write(GET)
        assert await answer_on(reader) == "ok"
        writer.write(GET[:-2])
        assert await reader.read() == b""
        assert server.closed("head_timeout") == 1
        writer.close()

    with_server(test, head_s=SHORT_S)


def test_a_connection_without_a_request_is_closed_before_and_after_one() -> None:
    async def test(server: Serving, app: App) -> None:
        reader, writer = await server.connect()
        assert await reader.read() == b""
        writer.close()
        reader, writer = await server.connect()
        writer.write(GET)
        assert await answer_on(reader) == "ok"
        assert await reader.read() == b""
        assert server.closed("idle") == 2
        assert len(server.connections) == 0
        writer.close()

    with_server(test, idle_s=SHORT_S)


def test_a_body_that_stops_is_answered_and_the_connection_closed() -> None:
    async def test(server: Serving, app: App) -> None:
        reader, writer = await server.connect()
        for nbytes in (10, 1 << 20):  # the longer one is received directly
            writer.write(
                b"POST /length HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % nbytes + b"x" * (nbytes // 2)
            )
            assert await answer_on(reader) == "too slow"
            assert await reader.read() == b""
            writer.close()
            reader, writer = await server.connect()
        assert server.closed("body_timeout") == 2
        writer.close()

    with_server(test, body_s=SHORT_S)


def test_the_rest_of_a_refused_body_may_not_trickle_for_ever() -> None:
    async def test(server: Serving, app: App) -> None:
        reader, writer = await server.connect()
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        assert await answer_on(reader) == "ok"
        closed = asyncio.ensure_future(reader.read())
        while not closed.done():
            writer.write(b"x")
            await asyncio.wait([closed], timeout=SHORT_S / 4)
        assert server.closed("body_timeout") == 1
        writer.close()

    with_server(test, body_s=SHORT_S)


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_a_body_that_makes_progress_is_never_cut(framing: str) -> None:
    """Each part arrives within the limit, all together take several times as long."""
    parts = 8

    async def test(server: Serving, app: App) -> None:
        reader, writer = await server.connect()
        length = f"content-length: {parts * PROGRESS_NBYTES}"
        writer.write(
            b"POST /length HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n"
            % (length if framing == "content-length" else "transfer-encoding: chunked").encode()
        )
        for _ in range(parts):
            part = b"x" * PROGRESS_NBYTES
            writer.write(part if framing == "content-length" else b"%x\r\n%b\r\n" % (len(part), part))
            await asyncio.sleep(SHORT_S)
        if framing == "chunked":
            writer.write(b"0\r\n\r\n")
        assert await answer_on(reader) == str(parts * PROGRESS_NBYTES)
        writer.close()

    with_server(test, body_s=4 * SHORT_S)


def _deaf_client(port: int, path: bytes) -> socket.socket:
    """Asks and does not read. A small buffer, so that the server notices soon."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path)
    return client


def test_an_answer_that_nobody_reads_is_cut() -> None:
    async def test(server: Serving, app: App) -> None:
        with _deaf_client(server.port, b"/endless"):
            await app.ended.wait()
        assert app.cut
        assert server.closed("unread") == 1
        assert len(server.connections) == 0

    with_server(test, unread_s=SHORT_S)


def test_an_unread_answer_is_counted_and_cut_after_the_app_has_ended() -> None:
    async def test(server: Serving, app: App) -> None:
        with _deaf_client(server.port, b"/slow") as client:
            client.setblocking(False)
            app.advance.put_nowait(b"x" * (16 << 20))  # more than the kernel takes
            app.advance.put_nowait(b"")
            await _until(lambda: bool(app.num_sent or _unsent(server)))
            server.connections.report()
            assert server.samples.total("http_connections_unread") >= 1
            assert server.samples.total("http_unread_bytes") > 1 << 20
            await _until(lambda: not len(server.connections))
        assert server.closed("unread") == 1

    with_server(test, unread_s=4 * SHORT_S)


def test_an_unread_answer_is_cut_although_its_connection_is_closing() -> None:
    async def test(server: Serving, app: App) -> None:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", server.port))
            client.sendall(b"GET /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            app.advance.put_nowait(b"x" * (16 << 20))
            app.advance.put_nowait(b"")
            await server_ended(server, "unread")

    with_server(test, unread_s=SHORT_S)


def test_a_slow_reader_and_a_slow_engine_are_never_cut() -> None:
    """All limits are short; the client reads a little at a time, and then the engine is silent for longer than any."""

    async def test(server: Serving, app: App) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=4096)
        writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        app.advance.put_nowait(b"x" * (8 << 20))
        num_read = 0
        while num_read < 8 << 20:
            num_read += len(await reader.read(1 << 20))
            await asyncio.sleep(SHORT_S / 20)
        await asyncio.sleep(3 * SHORT_S)
        app.advance.put_nowait(b"last")
        app.advance.put_nowait(b"")
        assert b"last" in await reader.readuntil(b"0\r\n\r\n")
        assert not [labels for name, _, labels in server.samples.recorded if name == "http_connections_closed"]
        writer.close()

    with_server(test, unread_s=SHORT_S, idle_s=SHORT_S, head_s=SHORT_S, body_s=SHORT_S)


def test_one_connection_too_many_gets_503_and_a_close_and_others_are_served() -> None:
    async def test(server: Serving, app: App) -> None:
        (first, first_writer), (_, second_writer) = [await server.connect() for _ in range(2)]
        await _until(lambda: len(server.connections) == 2)
        for sent in (b"", GET, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * 100_000):
            reader, writer = await server.connect()
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: 1\r\n" in head
            assert await reader.read() == REFUSAL
            writer.close()
        assert server.closed("limit") == 3
        first_writer.write(GET)
        assert await answer_on(first) == "ok"
        second_writer.close()
        await _until(lambda: len(server.connections) == 1)
        reader, writer = await server.connect()
        writer.write(GET)
        assert await answer_on(reader) == "ok"
        for each in (writer, first_writer):
            each.close()

    with_server(test, max_connections=2)


def test_very_many_connections_too_many_are_all_closed() -> None:
    async def test(server: Serving, app: App) -> None:
        _, writer = await server.connect()
        refused = [await server.connect() for _ in range(80)]
        for reader, other in refused:
            assert REFUSAL in await reader.read()
            other.close()
        await _until(lambda: not server.connections._lingering)
        writer.close()

    with_server(test, max_connections=1)


@pytest.mark.parametrize("complete", [True, False])
def test_too_many_headers_are_431(complete: bool) -> None:
    async def test(server: Serving, app: App) -> None:
        reader, writer = await server.connect()
        writer.write(b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 300 + b"\r\n" * complete)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")
        assert server.closed("head_too_large") == 1
        writer.close()

    with_server(test)


async def server_ended(server: Serving, reason: str) -> None:
    await _until(lambda: server.closed(reason) == 1 and not len(server.connections))


def _unsent(server: Serving) -> int:
    return sum(connection.unsent_nbytes for connection in server.connections._open)


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - plain state of objects under test
        await asyncio.sleep(0.002)
