"""Memory that requests hold of an HTTP worker: reserved first, shrunk with what is left of it, released once."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2 as httpx
import numpy as np
import openai
import pytest
from PIL import Image

from mmserve.httpserver.call import MediaItem, MediaRef
from mmserve.httpserver.media.reader import MediaReader
from mmserve.messages.media import Processing
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream, say_then_hold
from tests.fakes.http.http_worker import POST_CHAT, Worker, http_worker, run
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.media import encoded
from tests.fakes.processes.samples import Samples

MIB = 1 << 20
KEPT_NBYTES = (16 << 10, 24 << 10)
"""Least and most that is counted for a short request with one choice, besides its images."""


def _body(nbytes: int, text: str = "?", **fields: Any) -> bytes:
    """A request with one image, about so long."""
    url = "data:image/png;base64," + "A" * nbytes
    content = [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]
    return json.dumps({"model": "stub", "messages": [{"role": "user", "content": content}], **fields}).encode()


def _client() -> httpx.AsyncClient:
    """Of plain HTTP: to read the machine's certificates would take longer than most of what is tested here."""
    return httpx.AsyncClient(timeout=30, verify=False, headers={"content-type": "application/json"})


async def _post(worker: Worker, body: bytes) -> httpx.Response:
    async with _client() as client:
        return await client.post(f"{worker.url}/v1/chat/completions", content=body)


async def _say(worker: Worker, text: str = "hi") -> None:
    async with worker.client() as client:
        await client.chat.completions.create(model="stub", messages=[{"role": "user", "content": text}])


class Decoded:
    """Reads base64, as far as lengths go."""

    async def read(self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing) -> list[MediaItem]:
        return [MediaItem(bytes(ref.nbytes * 3 // 4), 8, 8, b"x", ref.param) for ref in refs]


@asynccontextmanager
async def _full_worker(**options: Any) -> AsyncIterator[tuple[Worker, asyncio.Task[httpx.Response]]]:
    """A worker whose first request holds most of the body budget until ``leases.gate`` is set. Idle at the end."""
    async with http_worker(media=Decoded(), body_budget_mb=2, max_body_mb=2, **options) as worker:
        worker.leases.gate.clear()
        first = asyncio.create_task(_post(worker, _body(1_300_000)))
        await worker.until(lambda: len(worker.leases.held) == 1)
        yield worker, first
        worker.leases.gate.set()
        assert (await first).status_code == 200
        await worker.idle()


def test_bodies_wait_for_memory_while_short_text_requests_proceed() -> None:
    async def test() -> None:
        async with _full_worker() as (worker, first):
            second = asyncio.create_task(_post(worker, _body(1_300_000)))
            await worker.until(lambda: worker.context.body_memory.num_waiting == 1)
            await _say(worker)
            worker.leases.gate.set()
            assert [(await one).status_code for one in (first, second)] == [200, 200]

    run(test)


def test_long_text_does_not_wait_for_images_unless_it_exceeds_the_short_size() -> None:
    async def test() -> None:
        async with _full_worker(max_queued_requests=8) as (worker, first):
            second = asyncio.create_task(_post(worker, _body(1_300_000)))
            await worker.until(lambda: worker.context.body_memory.num_waiting == 1)
            answered = await _post(worker, _text(250_000))
            assert answered.json()["error"]["code"] == "context_length_exceeded"
            third = asyncio.create_task(_post(worker, _text(270_000)))
            await worker.until(lambda: worker.context.body_memory.num_waiting == 2)
            worker.leases.gate.set()
            assert [(await one).status_code for one in (first, second, third)] == [200, 200, 400]

    run(test)


def test_a_body_that_waits_too_long_gets_503_with_retry_after() -> None:
    async def test() -> None:
        async with _full_worker(mm_queue_timeout=0.2, now=lambda: 0.0) as (worker, _):
            refused = await _post(worker, _body(1_300_000))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert "--body-budget-mb" in refused.json()["error"]["message"]

    run(test)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("sent", "resets"),
    [
        (POST_CHAT + b"content-length: 1300000\r\nexpect: 100-continue\r\n\r\n", False),
        (POST_CHAT + b"content-length: 1300000\r\n\r\n" + b"x" * 100_000, False),
        (POST_CHAT + b"transfer-encoding: chunked\r\n\r\n20000\r\n" + b"x" * 0x20000 + b"\r\n1", False),
        (POST_CHAT + b"content-length: 1300000\r\n\r\n" + b"x" * 1_300_000, True),
    ],
    ids=["unasked", "started", "chunked", "reset"],
)
def test_a_disconnect_while_a_body_waits_removes_it_from_the_queue(sent: bytes, resets: bool) -> None:
    async def test() -> None:
        async with _full_worker() as (worker, _):
            before = _open_files()
            _, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            if resets:
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.write(sent)
            await worker.until(lambda: worker.context.body_memory.num_waiting == 1)
            writer.transport.abort()
            await worker.until(lambda: worker.context.admission.in_flight == 1)
            assert worker.context.body_memory.num_waiting == 0
            await worker.until(lambda: _open_files() <= before)

    run(test)


def test_a_disconnect_watch_is_closed_after_a_wait_that_ended_otherwise() -> None:
    async def test() -> None:
        async with _full_worker(mm_queue_timeout=0.2) as (worker, _), _client() as client:
            url = f"{worker.url}/v1/chat/completions"
            assert (await client.post(url, content=_text(1))).status_code == 200
            before = _open_files()
            assert (await client.post(url, content=_body(1_300_000))).status_code == 503
            await worker.until(lambda: _open_files() <= before)

    run(test)


def _text(nbytes: int) -> bytes:
    return json.dumps({"model": "stub", "messages": [{"role": "user", "content": "x" * nbytes}]}).encode()


@asynccontextmanager
async def _in_chunks(worker: Worker) -> AsyncIterator[tuple[asyncio.StreamReader, Callable[[bytes], None]]]:
    """A request with a chunked body. Yields its response's reader and a function that sends a chunk (empty: end)."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(POST_CHAT + b"transfer-encoding: chunked\r\n\r\n")
    yield reader, lambda piece: writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    writer.close()


def test_text_of_unknown_length_reserves_little_and_then_what_is_kept_of_it() -> None:
    async def test() -> None:
        async with http_worker(max_body_mb=64) as worker, AsyncExitStack() as stack:
            worker.upstream.behave = say_then_hold("never")
            sends = [(await stack.enter_async_context(_in_chunks(worker)))[1] for _ in range(10)]
            for send in sends:
                send(_text(2))
            await worker.until(lambda: worker.context.admission.in_flight == 10)
            assert worker.context.body_memory.used_nbytes <= 10 * worker.context.body_memory.short_nbytes
            for send in sends:
                send(b"")
            await worker.upstream.until(lambda: len(worker.upstream.requests()) == 10)
            assert 10 * KEPT_NBYTES[0] < worker.context.body_memory.used_nbytes < 10 * KEPT_NBYTES[1]

    run(test)


def test_a_body_that_turns_out_large_releases_its_reservation_before_it_waits() -> None:
    async def test() -> None:
        async with http_worker(media=Decoded(), body_budget_mb=2, max_body_mb=2) as worker, AsyncExitStack() as stack:
            answers = []
            for _ in range(2):
                answer, send = await stack.enter_async_context(_in_chunks(worker))
                body = _body(100_000)
                send(body[:80_000])
                answers.append((answer, send, body))
            await worker.until(lambda: worker.context.body_memory.num_waiting == 1)
            assert worker.context.body_memory.used_nbytes == 2 * MIB, "the body that is read has reserved its maximum"
            for _, send, body in answers:
                send(body[80_000:])
                send(b"")
            for answer, _, _ in answers:
                assert (await answer.readline()).startswith(b"HTTP/1.1 200")
            await worker.idle()

    run(test)


def test_once_a_body_is_read_what_is_kept_of_it_is_reserved() -> None:
    class Reader(Decoded):
        def __init__(self) -> None:
            self.started, self.gate = asyncio.Event(), asyncio.Event()

        async def read(self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing) -> list[MediaItem]:
            self.started.set()
            await self.gate.wait()
            return await super().read(refs, cache_salt, processing)

    async def test() -> None:
        reader = Reader()
        async with http_worker(media=reader) as worker, _in_chunks(worker) as (answer, send):
            send(_body(100_000))
            send(b"")
            await reader.started.wait()
            kept = worker.context.body_memory.used_nbytes - 75_000
            assert KEPT_NBYTES[0] < kept < KEPT_NBYTES[1], "the image is decoded already, and the body is gone"
            reader.gate.set()
            assert (await answer.readline()).startswith(b"HTTP/1.1 200")
            await worker.idle()

    run(test)


def test_n_streamed_choices_share_one_reservation() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = await _post(worker, _body(100_000, n=4, stream=True))
            assert answer.status_code == 200
            assert len(worker.upstream.requests()) == 4
            await worker.idle()
            assert len(worker.leases.held) == len(worker.leases.released) == 1

    run(test)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_too_many_waiting_is_429_and_too_long_is_503(stream: bool) -> None:
    ends = {"overloaded": 429, "abort": 503}

    async def test() -> None:
        async with http_worker() as worker:
            for finish, status in ends.items():
                worker.upstream.behave = _ending(finish)
                answer = await _post(worker, _body(100_000, stream=stream))
                assert answer.status_code == status
                assert int(answer.headers["retry-after"]) >= 1
                await worker.idle()

    def _ending(finish: str) -> Callable[[Upstream, GenerateRequest], Awaitable[None]]:
        async def behave(upstream: Upstream, request: GenerateRequest) -> None:
            upstream.reply(request, finish=finish, message="wait")

        return behave

    run(test)


def test_text_requests_proceed_while_images_wait() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            worker.leases.gate.clear()
            waiting = [asyncio.create_task(_post(worker, _body(50_000))) for _ in range(64)]
            await worker.until(lambda: len(worker.leases.held) == 64)
            await _say(worker)
            assert not any(task.done() for task in waiting)
            worker.leases.gate.set()
            assert {(await task).status_code for task in waiting} == {200}
            await worker.idle()

    run(test)


def test_while_a_request_waits_only_its_compressed_bytes_are_in_memory(tmp_path: Any) -> None:
    """The body with its base64 text (10 MB) is freed; the compressed images (7.5 MB) are kept."""
    noise = np.random.default_rng(1).integers(0, 256, (1000, 2500, 3), np.uint8)
    picture = encoded(Image.fromarray(noise), "PNG", compress_level=0)
    body = _body(0).replace(b"base64,", b"base64," + base64.b64encode(picture))
    reader = MediaReader(deployment_of(write_chat_model(tmp_path)), Samples())  # type: ignore[arg-type]

    async def test() -> None:
        async with http_worker(media=reader) as worker:
            await _say(worker)
            worker.leases.gate.clear()
            in_, out = await asyncio.open_connection("127.0.0.1", worker.port)
            tracemalloc.start()
            out.write(POST_CHAT + b"Content-Length: %d\r\n\r\n" % len(body))
            for at in range(0, len(body), 1 << 16):
                out.write(body[at : at + (1 << 16)])
                await out.drain()
            await worker.until(lambda: len(worker.leases.held) == 1)
            await asyncio.sleep(0)
            gc.collect()
            held, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert len(picture) <= held < len(picture) + MIB
            assert peak < len(picture) + len(body) + 2 * MIB, "the body and the picture, and nothing else"
            assert KEPT_NBYTES[0] < worker.context.body_memory.used_nbytes - len(picture) < KEPT_NBYTES[1]
            worker.leases.gate.set()
            assert (await in_.readline()).startswith(b"HTTP/1.1 200")
            out.close()
            await worker.idle()
        await reader.aclose()

    run(test)


def test_fetched_images_have_a_separate_budget() -> None:
    class Reader:
        def __init__(self) -> None:
            self.fetching, self.gate = 0, asyncio.Event()

        async def read(self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing) -> list[MediaItem]:
            self.fetching += 1
            await self.gate.wait()
            return [MediaItem(b"x" * 1000, 8, 8, b"x", ref.param) for ref in refs]

    async def ask(client: openai.AsyncOpenAI) -> None:
        content = [{"type": "image_url", "image_url": {"url": "http://pictures.example/1.png"}}]
        await client.chat.completions.create(model="stub", messages=[{"role": "user", "content": content}])  # type: ignore[call-overload]

    async def test() -> None:
        reader = Reader()
        async with http_worker(media=reader, max_body_mb=1, fetch_budget_mb=2) as worker:
            async with worker.client() as client:
                asking = [asyncio.create_task(ask(client)) for _ in range(3)]
                await worker.until(lambda: worker.context.fetch_memory.num_waiting == 1)
                assert reader.fetching == 2, "each may fetch as much as one request may"
                reader.gate.set()
                await asyncio.gather(*asking)
            await worker.idle()

    run(test)
