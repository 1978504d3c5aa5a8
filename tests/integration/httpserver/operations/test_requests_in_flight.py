"""What an HTTP worker tells of its requests in flight, over its own socket, at each stage of a request."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import openai
import pytest

from mmserve.httpserver.call import MediaItem, MediaRef
from mmserve.httpserver.request import in_flight
from mmserve.ipc.status_client import read_page
from mmserve.messages.media import Processing
from mmserve.messages.request import AskStages
from mmserve.messages.server_state import MAX_REQUESTS, RequestState
from tests.fakes.http.http_services import IMAGE_TOKENS, StubMedia
from tests.fakes.http.http_upstream import say_then_hold
from tests.fakes.http.http_worker import Worker, http_worker, run

PICTURE = {"type": "image_url", "image_url": {"url": "data:cat"}}


class _GatedMedia(StubMedia):
    def __init__(self) -> None:
        self.reading, self.go_on = asyncio.Event(), asyncio.Event()

    async def read(self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing) -> list[MediaItem]:
        self.reading.set()
        await self.go_on.wait()
        return await super().read(refs, cache_salt, processing)


async def _rows(worker: Worker) -> list[RequestState]:
    page = await asyncio.to_thread(read_page, worker.context.endpoints.requests_http(0), "/", 10.0)
    assert page is not None
    return msgspec.json.decode(page, type=list[RequestState])


def _asking(client: openai.AsyncOpenAI, content: Any = "private words", **fields: Any) -> asyncio.Task[Any]:
    messages = [{"role": "user", "content": content}]
    return asyncio.create_task(client.chat.completions.create(model="stub", messages=messages, **fields))


def test_a_request_with_a_picture_is_shown_at_each_of_its_stages() -> None:
    async def test() -> None:
        media = _GatedMedia()
        async with http_worker(enable_admin=True, media=media) as worker, worker.client() as client:
            assert await _rows(worker) == []
            worker.upstream.behave, worker.upstream.stage = say_then_hold("ab"), "encoding"
            worker.leases.gate.clear()
            answer = _asking(client, [{"type": "text", "text": "private words"}, PICTURE])
            await media.reading.wait()
            (row,) = await _rows(worker)
            assert (row.state, row.prompt_tokens, row.output_tokens, row.images) == ("reading", 0, 0, 1)
            media.go_on.set()
            await worker.until(lambda: bool(worker.leases.held))
            (waiting,) = await _rows(worker)
            assert (waiting.state, waiting.id) == ("waiting", row.id)
            assert not any(isinstance(message, AskStages) for message in worker.upstream.received)
            worker.leases.gate.set()
            await worker.upstream.until(lambda: bool(worker.upstream.requests()))
            (row,) = await _rows(worker)
            assert row.state == "encoding"
            assert row.prompt_tokens > IMAGE_TOKENS
            assert row.age_s > waiting.age_s
            worker.upstream.stage = "decoding"
            await worker.until(lambda: worker.context.request_tasks.oldest(1)[0].deltas.usage.completion_tokens == 2)
            (row,) = await _rows(worker)
            assert (row.state, row.output_tokens) == ("decoding", 2)
            assert "private" not in repr(row)
            worker.upstream.release.set()
            assert (await answer).choices[0].message.content == "ab"
            assert await _rows(worker) == []

    run(test)


def test_without_an_answer_of_the_router_the_state_is_open() -> None:
    async def test() -> None:
        async with http_worker(enable_admin=True) as worker, worker.client() as client:
            worker.context.in_flight._timeout_s = 0.01
            worker.upstream.behave, worker.upstream.stage = say_then_hold(""), None
            answer = _asking(client)
            await worker.upstream.until(lambda: bool(worker.upstream.requests()))
            (row,) = await _rows(worker)
            assert row.state is None
            worker.upstream.stage = "queued"
            worker.context.in_flight._timeout_s = 10.0
            (row,) = await _rows(worker)
            assert row.state == "queued"
            worker.upstream.release.set()
            await answer

    run(test)


def test_the_oldest_requests_are_shown_and_of_several_choices_one_is_asked_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their ages are of one moment, however long it takes to write them down."""
    seconds = itertools.count(time.monotonic() + 60)
    monkeypatch.setattr(in_flight, "time", SimpleNamespace(monotonic=lambda: next(seconds)))

    async def test() -> None:
        async with http_worker(enable_admin=True) as worker, worker.client() as client:
            worker.upstream.behave = say_then_hold("")
            answers = [_asking(client, n=2) for _ in range(MAX_REQUESTS + 5)]
            await worker.upstream.until(lambda: len(worker.upstream.requests()) == 2 * len(answers))
            rows = await _rows(worker)
            assert len(rows) == MAX_REQUESTS
            assert [row.age_s for row in rows] == sorted((row.age_s for row in rows), reverse=True)
            (asked,) = (message for message in worker.upstream.received if isinstance(message, AskStages))
            assert asked.ids == tuple(f"{row.id}-0" for row in rows)
            worker.upstream.release.set()
            await asyncio.gather(*answers)

    run(test)


def test_the_socket_is_there_with_the_option_only_and_goes_with_the_worker() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            assert not worker.context.endpoints.requests_http(0).exists()
        async with http_worker(enable_admin=True) as worker:
            socket = worker.context.endpoints.requests_http(0)
            assert socket.exists()
        assert not socket.exists()

    run(test)
