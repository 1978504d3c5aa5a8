"""Request bodies of any size on real connections: every byte arrives exactly once, at its own request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest
import xxhash
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mmserve.httpserver.http import body_receiver
from mmserve.httpserver.http.body import read_body
from mmserve.runtime.errors import TooLarge, TooSlow
from tests.fakes.http.http_server import answer_on, serving
from tests.fakes.http.http_worker import run

LIMIT = 8 << 20


class Digests:
    """An application that answers each body with its hash; ``left`` counts clients that went away."""

    def __init__(self) -> None:
        self.left = asyncio.Semaphore(0)
        self.port = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = Response(xxhash.xxh3_64_hexdigest(await read_body(Request(scope, receive), LIMIT)))
        except TooLarge:
            answer = Response("too large", 413)
        except TooSlow:
            answer = Response("too slow", 408)
        except ClientDisconnect:
            self.left.release()
            return
        await answer(scope, receive, send)


def with_server(test: Callable[[Digests], Awaitable[None]], **limits: float) -> None:
    async def go() -> None:
        app = Digests()
        async with serving(app, **limits) as server:
            app.port = server.port
            await test(app)

    run(go)


def body_of(nbytes: int) -> bytes:
    return random.Random(nbytes).randbytes(nbytes)


def request_of(body: bytes, *headers: str) -> bytes:
    head = ["POST / HTTP/1.1", "host: x", *(headers or [f"content-length: {len(body)}"]), "", ""]
    return "\r\n".join(head).encode() + body


@pytest.mark.parametrize("sizes", [[0, 1, 70_000, 0], [131_071, 131_073, 400_000, 5, 3_000_000, 8 << 20, 200_000]])
def test_bodies_of_any_size_on_one_connection(sizes: list[int]) -> None:
    async def test(app: Digests) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        for size in sizes:
            writer.write(request_of(body_of(size)))
            assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(body_of(size))
        writer.close()

    with_server(test)


def test_pipelined_requests_keep_their_own_bodies() -> None:
    async def test(app: Digests) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        sizes = [500_000, 10, 2_000_000, 300_000, 0]
        writer.write(b"".join(request_of(body_of(size)) for size in sizes))
        for size in sizes:
            assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(body_of(size))
        writer.close()

    with_server(test)


def test_a_body_in_many_small_pieces() -> None:
    async def test(app: Digests) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        body, at = body_of(300_000), 0
        data, rng = request_of(body), random.Random(1)
        while at < len(data):
            step = rng.randrange(1, 8000)
            writer.write(data[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)
            at += step
        assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(body)
        writer.close()

    with_server(test)


def test_a_body_of_unknown_length() -> None:
    async def test(app: Digests) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        body = body_of(1_000_000)
        chunks = [body[at : at + 300_000] for at in range(0, len(body), 300_000)]
        framed = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks) + b"0\r\n\r\n"
        writer.write(request_of(framed, "transfer-encoding: chunked"))
        assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(body)
        writer.close()

    with_server(test)


def test_a_client_that_expects_100_continue() -> None:
    async def test(app: Digests) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        body = body_of(1_000_000)
        writer.write(request_of(b"", f"content-length: {len(body)}", "expect: 100-continue"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(body)
        writer.close()

    with_server(test)


def test_many_clients_at_once() -> None:
    async def test(app: Digests) -> None:
        async def client(size: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
            for _ in range(3):
                writer.write(request_of(body_of(size)))
                assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(body_of(size))
            writer.close()

        await asyncio.gather(*(client(200_000 + 100_000 * number) for number in range(16)))
        assert not body_receiver._read_queue._waiting

    with_server(test)


@pytest.mark.parametrize("sent", [100, 150_000, 900_000])
def test_a_disconnect_in_the_middle_of_a_body(sent: int) -> None:
    async def test(app: Digests) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(request_of(body_of(1_000_000))[:sent])
        await writer.drain()
        writer.close()
        await app.left.acquire()
        assert not body_receiver._read_queue._waiting

    with_server(test)


def test_the_rest_of_a_body_after_its_response_is_not_read_as_a_request() -> None:
    async def test(app: Digests) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        data = request_of(body_of(1_000_000))
        writer.write(data[:600_000])
        assert await answer_on(reader) == "too slow"
        writer.write(data[600_000:] + request_of(body_of(300_000)))
        assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(body_of(300_000))
        writer.close()

    with_server(test, body_s=0.2)


@pytest.mark.parametrize("size", [0, 5, 100_000, 3_000_000])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_an_upgrade_is_declined_and_its_body_arrives(size: int, chunked: bool, apart: bool) -> None:
    """curl --http2 and Java's clients offer h2c with an Upgrade header; a server without it answers in HTTP/1.1."""
    body = body_of(size)
    sent = b"%x\r\n%b\r\n0\r\n\r\n" % (size, body) if chunked and size else b"0\r\n\r\n" if chunked else body
    length = "transfer-encoding: chunked" if chunked else f"content-length: {size}"
    offer = "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABkAAQAoAAAAAIAAAAA"

    async def test(app: Digests) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        head = request_of(b"", *offer, length)
        for part in (head, sent) if apart else (head + sent,):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(body)
        for again in (head + sent, request_of(body_of(7))):
            writer.write(again)
            assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(body if again == head + sent else body_of(7))
        writer.close()

    with_server(test)


def test_a_body_that_looks_like_a_request_after_a_declined_upgrade_is_a_body() -> None:
    async def test(app: Digests) -> None:
        inner = request_of(b"smuggled")
        offer = "connection: Upgrade", "upgrade: h2c", f"content-length: {len(inner)}"
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(request_of(b"", *offer) + inner)
        assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(inner)
        writer.write(request_of(b"next"))
        assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(b"next")
        writer.close()

    with_server(test)


@pytest.mark.parametrize(
    "behind", [request_of(b"second"), request_of(b"", "upgrade: h2c", "connection: upgrade"), b"\0"]
)
def test_data_that_arrives_with_the_end_of_a_declined_upgrade_closes_the_connection(behind: bytes) -> None:
    """The parser of such a body does not report where it ended, so data after it must not be read as a request."""

    async def test(app: Digests) -> None:
        offer = "connection: Upgrade", "upgrade: h2c", "content-length: 5"
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(request_of(b"", *offer) + b"first" + behind)
        assert await answer_on(reader) == xxhash.xxh3_64_hexdigest(b"first")
        assert await reader.read() == b""
        writer.close()

    with_server(test)


def test_a_refusal_reaches_a_client_that_offered_an_upgrade_and_still_sends() -> None:
    async def test(app: Digests) -> None:
        offer = "connection: Upgrade", "upgrade: h2c", f"content-length: {4 * LIMIT}"
        reader, writer = await asyncio.open_connection("127.0.0.1", app.port)
        writer.write(request_of(b"", *offer))
        for _ in range(64):
            writer.write(bytes(LIMIT // 16))
            await writer.drain()
        assert await answer_on(reader) == "too large"
        writer.close()

    with_server(test)
