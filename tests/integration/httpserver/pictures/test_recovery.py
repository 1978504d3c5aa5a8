"""Disconnects, engine restarts and lost images: everything is released, no text is lost or repeated."""

from __future__ import annotations

import asyncio
import json
import socket

import openai
import pytest

from mmserve.httpserver.engine.dispatcher import Dispatcher
from mmserve.ipc.faults import InjectedFault, arm
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import GenerateRequest
from mmserve.messages.sampling import SamplingParams
from tests.fakes.http.http_upstream import Upstream, output_of, say, say_then_hold
from tests.fakes.http.http_worker import POST_CHAT, Worker, http_worker, run
from tests.integration.httpserver.protocols.test_chat import HELLO, PICTURE


async def _open(worker: Worker, *, stream: bool, messages: object = PICTURE) -> asyncio.StreamWriter:
    """Send a request and return its connection, answer unread."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", worker.port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=1024)
    body = json.dumps({"model": "stub", "messages": messages, "stream": stream}).encode()
    head = POST_CHAT + b"content-length: %d\r\n\r\n" % len(body)
    writer.write(head + body)
    await writer.drain()
    if stream:
        await reader.readuntil(b"data: ")
    return writer


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_aborts_and_the_lease_is_kept_until_the_engine_has_ended(stream: bool) -> None:
    async def test() -> None:
        async with http_worker() as worker:
            upstream = worker.upstream
            upstream.behave, upstream.answer_aborts = say_then_hold("so"), False
            writer = await _open(worker, stream=stream)
            await upstream.until(lambda: bool(upstream.requests()))
            writer.close()
            await upstream.until(lambda: bool(upstream.aborts()))
            assert worker.leases.released == []
            assert worker.context.admission.in_flight == 1
            upstream.reply(upstream.requests()[0], finish="abort")
            await worker.idle()
            assert worker.leases.released == worker.leases.held

    run(test)


def test_a_slow_reader_delays_neither_others_nor_the_release_of_its_lease() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        for _ in range(20_000):
            upstream.reply(request, b"x")
        upstream.reply(request, finish="stop")

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = behave
            writer = await _open(worker, stream=True)
            await worker.idle()
            assert worker.leases.released == worker.leases.held
            worker.upstream.behave = say("quick")
            answer = await client.chat.completions.create(model="stub", messages=HELLO)
            assert answer.choices[0].message.content == "quick"
            writer.transport.abort()

    run(test)


def test_a_message_that_cannot_be_handled_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            deliver = Dispatcher.deliver

            def fail_once(dispatcher: Dispatcher, reply: TokenReply) -> None:
                monkeypatch.setattr(Dispatcher, "deliver", deliver)
                raise RuntimeError("a bug")

            monkeypatch.setattr(Dispatcher, "deliver", fail_once)
            sampling = SamplingParams(max_tokens=1)
            request = GenerateRequest(id="nobody", reply_to=0, prompt_ids=b"", sampling=sampling, arrival_s=0.0)
            worker.upstream.reply(request, b"x")
            answer = await client.chat.completions.create(model="stub", messages=HELLO)
            assert answer.choices[0].message.content == "hello"
        assert "a message to this worker failed" in caplog.text

    run(test)


@pytest.mark.parametrize("kind", ["error", "memory"])
def test_no_token_is_lost_when_a_reply_cannot_be_handled(kind: InjectedFault) -> None:
    async def test() -> None:
        async with http_worker(fault_injection=True) as worker, worker.client() as client:
            upstream = worker.upstream
            upstream.behave = say_then_hold("first ")
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True)
            chunks = aiter(stream)
            while (await anext(chunks)).choices[0].delta.content != "first ":
                pass
            upstream.behave = say("first and last")
            arm(worker.context.endpoints.fault("httpserver-0"), kind)
            upstream.reply(upstream.requests()[0], b"lost")
            assert await _text(stream) == "and last"
            assert [output_of(request) for request in upstream.requests()] == [b"", b"first "]

    run(test)


def test_no_phase_is_lost_when_it_cannot_be_handled() -> None:
    async def test() -> None:
        async with http_worker(fault_injection=True) as worker, worker.client() as client:
            upstream = worker.upstream
            upstream.behave = say_then_hold("first ")
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True)
            upstream.lose_requests()
            upstream.behave = say("first and last")
            arm(worker.context.endpoints.fault("httpserver-0"), "error")
            upstream.say_phase(engine_epoch=1)
            assert await _text(stream) == "first and last"

    run(test)


async def _text(stream: openai.AsyncStream[openai.types.chat.ChatCompletionChunk]) -> str:
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


def test_a_stream_goes_on_with_the_same_text_after_an_engine_restart() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            upstream = worker.upstream
            upstream.behave = say_then_hold("first ")
            stream = await client.chat.completions.create(model="stub", messages=PICTURE, stream=True)
            upstream.lose_requests()
            upstream.behave = say("first and last")
            upstream.say_phase(engine_epoch=1)
            assert await _text(stream) == "first and last"
            again = upstream.requests()[-1]
            assert (again.attempt, output_of(again)) == (1, b"first ")
            assert [span.data for span in again.spans] == [None], "its picture is encoded"

    run(test)


def test_a_request_waiting_in_a_killed_visual_server_is_sent_to_its_successor() -> None:
    async def silent(upstream: Upstream, request: GenerateRequest) -> None:
        return None

    async def test() -> None:
        async with http_worker(visual_workers=2) as worker, worker.client() as client:
            upstream = worker.upstream
            upstream.behave = silent
            asking = asyncio.create_task(client.chat.completions.create(model="stub", messages=PICTURE))
            await upstream.until(lambda: bool(upstream.requests()))
            upstream.behave = say("seen")
            upstream.say_phase(visual_epochs=(1, 0))
            answer = await asking
            assert answer.choices[0].message.content == "seen"
            assert [each.attempt for each in upstream.requests()] == [0, 1]

    run(test)


def test_lost_media_is_leased_again_and_the_text_goes_on() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        if request.attempt < 2:
            upstream.reply(request, b"ab"[request.attempt : request.attempt + 1])
            upstream.reply(request, finish="media_lost")
        else:
            await say("abc")(upstream, request)

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = behave
            answer = await client.chat.completions.create(model="stub", messages=PICTURE)
            assert answer.choices[0].message.content == "abc"
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 3
            await worker.idle()
            assert len(set(worker.leases.held)) == 3
            assert sorted(worker.leases.released) == sorted(worker.leases.held)
            generations = [request.spans[0].embed.generation for request in worker.upstream.requests()]
            assert generations == [1, 2, 3]

    run(test)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_request_keeps_its_allocation_path_when_the_fraction_changes(share: float) -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            alloc_paths = worker.context.alloc_paths

            async def behave(upstream: Upstream, request: GenerateRequest) -> None:
                alloc_paths.split.fraction = 1.0 - share
                if request.attempt < 1:
                    upstream.reply(request, finish="media_lost")
                else:
                    await say("seen")(upstream, request)

            worker.upstream.behave = behave
            alloc_paths.split.fraction = share
            await client.chat.completions.create(model="stub", messages=PICTURE)
            await worker.idle()
            taken, other = (worker.leases, worker.v1_leases) if share else (worker.v1_leases, worker.leases)
            assert len(taken.held) == len(taken.released) == 2
            assert other.held == []

    run(test)


def test_a_request_that_loses_its_media_too_often_fails() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, finish="media_lost")

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = behave
            with pytest.raises(openai.InternalServerError) as refused:
                await client.chat.completions.create(model="stub", messages=PICTURE)
            assert refused.value.status_code == 503
            assert refused.value.response.headers["retry-after"]
            assert len(worker.upstream.requests()) == 4

    run(test)


def test_a_new_cache_server_makes_waiting_requests_lease_again() -> None:
    async def silent(upstream: Upstream, request: GenerateRequest) -> None:
        return None

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            upstream = worker.upstream
            upstream.behave = silent
            asking = asyncio.create_task(client.chat.completions.create(model="stub", messages=PICTURE))
            await upstream.until(lambda: bool(upstream.requests()))
            upstream.behave = say("seen")
            upstream.say_phase(cache_epoch=1)
            answer = await asking
            assert answer.choices[0].message.content == "seen"
            assert len(worker.leases.held) == 2

    run(test)
