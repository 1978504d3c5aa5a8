"""Probes, API keys, limits, and a worker's phases from loading to drained."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import openai
import pytest

from mmserve.config.resolved.process import RETIRE
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream, say, say_then_hold
from tests.fakes.http.http_worker import POST_CHAT, Worker, http_worker, run, status_line
from tests.integration.httpserver.protocols.test_chat import HELLO, PICTURE

CHAT = "/v1/chat/completions"
ALLOC = "/admin/alloc"
JSON = {"content-type": "application/json"}
FRACTION = "concurrent_alloc_fraction"


def _http(worker: Worker, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=worker.url, headers=headers, timeout=20)


def _error(response: httpx2.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error, dict)
    return error


def test_while_loading_requests_get_503_with_the_phase() -> None:
    async def test() -> None:
        async with http_worker(ready=False) as worker, _http(worker) as http:
            worker.upstream.say_phase(phase="loading", ready=False, detail="weights")
            await worker.until(lambda: worker.context.admission.phase.phase == "loading")
            for path in ("/health", "/ready"):
                response = await http.get(path)
                assert (response.status_code, response.json()["phase"]) == (503, "loading")
            assert (await http.get("/live")).status_code == 200
            refused = await http.post(CHAT, json={"model": "stub", "messages": HELLO})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert _error(refused)["message"] == "the server is loading: weights"
            worker.upstream.say_phase()
            await worker.until(lambda: worker.context.admission.ready)
            assert (await http.get("/health")).status_code == 200
            assert (await http.head("/health")).status_code == 200

    run(test)


def test_models_version_and_docs() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client, _http(worker) as http:
            assert [model.id async for model in client.models.list()] == ["stub"]
            assert (await client.models.retrieve("stub")).model_dump()["max_model_len"] == 512
            assert (await client.models.retrieve("models/stub-7b")).id == "stub"
            with pytest.raises(openai.NotFoundError) as missing:
                await client.models.retrieve("other")
            assert missing.value.code == "model_not_found"
            assert (await http.get("/version")).json() == {"version": "1.2.3"}
            assert (await http.get("/docs")).status_code == 200
            schema = (await http.get("/openapi.json")).json()["paths"][CHAT]["post"]
            fields = schema["requestBody"]["content"]["application/json"]["schema"]["properties"]
            assert "temperature" in fields

    run(test)


def test_all_routes_except_probes_need_the_key() -> None:
    async def test() -> None:
        async with http_worker(api_key="secret") as worker, _http(worker) as http:
            for path in ("/v1/models", "/metrics", "/docs", "/version"):
                refused = await http.get(path)
                assert (refused.status_code, _error(refused)["code"]) == (401, "invalid_api_key")
            for path in ("/health", "/live", "/ready"):
                assert (await http.get(path)).status_code == 200
            assert (await http.get("/v1/models", headers={"x-api-key": "secret"})).status_code == 200
            async with worker.client("secret") as client:
                assert await client.models.list()

    run(test)


def test_an_operator_changes_the_share_of_allocations_without_a_restart() -> None:
    async def test() -> None:
        async with http_worker(enable_admin=True, api_key="secret") as worker:
            async with _http(worker) as stranger:
                assert (await stranger.get(ALLOC)).status_code == 401
                assert (await stranger.post(ALLOC, json={FRACTION: 0})).status_code == 401
            async with _http(worker, authorization="Bearer secret") as http:
                assert (await http.get(ALLOC)).json() == {FRACTION: 1.0}
                worker.upstream.behave = say("fine")
                await http.post(CHAT, json={"model": "stub", "messages": PICTURE})
                assert (await http.post(ALLOC, json={FRACTION: 0})).json() == {FRACTION: 0.0}
                assert (await http.get(ALLOC)).json() == {FRACTION: 0.0}
                await http.post(CHAT, json={"model": "stub", "messages": PICTURE})
                await http.post(CHAT, json={"model": "stub", "messages": PICTURE})
                assert (len(worker.leases.held), len(worker.v1_leases.held)) == (1, 2)

    run(test)


def test_an_invalid_fraction_is_refused_naming_the_field() -> None:
    values = ["1.5", "-0.01", "null", '"1"', "true", "NaN", "[]"]
    bodies = [f'{{"{FRACTION}": {value}}}' for value in values]
    bodies += ["", "{}", "[]", "null", "0.5", f'{{"{FRACTION}": 0.5, "more": 1}}', "\xff"]

    async def test() -> None:
        async with http_worker(enable_admin=True) as worker, _http(worker) as http:
            for body in bodies:
                refused = await http.post(ALLOC, content=body.encode("latin-1"), headers=JSON)
                assert (refused.status_code, _error(refused)["param"]) == (400, FRACTION), body
                assert FRACTION in _error(refused)["message"]
            assert (await http.get(ALLOC)).json() == {FRACTION: 1.0}

    run(test)


def test_without_the_flag_there_are_no_admin_routes() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            assert (await http.get(ALLOC)).status_code == 404
            assert (await http.post(ALLOC, json={FRACTION: 0})).status_code == 404

    run(test)


def test_a_server_without_v2_allocates_all_by_v1() -> None:
    async def test() -> None:
        async with http_worker(enable_admin=True, enable_concurrent_alloc=False) as worker, _http(worker) as http:
            refused = await http.post(ALLOC, json={FRACTION: 0.5})
            assert (refused.status_code, _error(refused)["param"]) == (400, FRACTION)
            assert (await http.post(ALLOC, json={FRACTION: 0})).status_code == 200

    run(test)


def test_errors_of_the_framework_have_the_same_form() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            missing = await http.get("/nothing/here")
            assert (missing.status_code, _error(missing)["code"]) == (404, "not_found")
            wrong = await http.get(CHAT)
            assert wrong.status_code == 405
            assert _error(wrong)["message"]
            garbage = await http.post(CHAT, content=b"{", headers=JSON)
            assert (garbage.status_code, _error(garbage)["type"]) == (400, "invalid_request_error")
            other = await http.post(CHAT, json={"model": "other", "messages": HELLO})
            assert (other.status_code, _error(other)["param"]) == (404, "model")

    run(test)


def test_a_valid_request_id_is_echoed() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            assert (await http.get("/live", headers={"x-request-id": "abc-1"})).headers["x-request-id"] == "abc-1"
            assert (await http.get("/live", headers={"x-request-id": "a" * 200})).headers["x-request-id"] != "a" * 200
            answer = await http.post(CHAT, json={"model": "stub", "messages": HELLO}, headers={"x-request-id": "mine"})
            assert answer.headers["x-request-id"] == "mine"
            assert "mine" not in worker.upstream.requests()[0].id

    run(test)


async def _page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A metrics server's answer."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=1\r\ncontent-length: 4\r\n\r\na 1\n")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


def test_metrics_come_from_the_metrics_server() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            assert (await http.get("/metrics")).status_code == 503
            async with await asyncio.start_unix_server(_page, worker.context.endpoints.metrics_http):
                scraped = await http.get("/metrics")
                head = await http.head("/metrics")
            assert (scraped.text, scraped.headers["content-type"]) == ("a 1\n", "text/plain; version=1")
            assert (head.status_code, head.text) == (200, "")

    run(test)


def test_a_scrape_makes_no_tls_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the certificates of the machine takes tens of milliseconds of the event loop."""

    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            made: list[object] = []
            for name in ("SSLContext", "create_default_context"):
                monkeypatch.setattr(ssl, name, lambda *args, **named: made.append(args))
            async with await asyncio.start_unix_server(_page, worker.context.endpoints.metrics_http):
                assert (await http.get("/metrics")).text == "a 1\n"
            assert not made

    run(test)


def test_an_error_repeats_a_bounded_part_of_the_path() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            for path in ("/live", "/health", "/nothing"):
                answer = await http.post(f"{path}/" + "ab" * 20_000, json={})
                assert answer.status_code == 404
                assert len(answer.content) < 500

    run(test)


@pytest.mark.parametrize(
    "request_start",
    [
        b"content-length: 99999999\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n40000\r\n" + b"x" * 0x40000,
    ],
    ids=["declared", "chunked"],
)
def test_a_body_over_the_cap_is_413_before_more_of_it_is_read(request_start: bytes) -> None:
    async def test() -> None:
        async with http_worker(max_body_mb=0.125) as worker:
            assert (await status_line(worker, POST_CHAT + request_start)).startswith(b"HTTP/1.1 413 ")
            async with worker.client() as client:
                with pytest.raises(openai.APIStatusError) as refused:
                    await client.chat.completions.create(
                        model="stub", messages=[{"role": "user", "content": "x" * 5_000_000}]
                    )
            assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")

    run(test)


def test_an_endless_request_head_or_refused_body_closes_the_connection() -> None:
    async def send_for_ever(worker: Worker, start: bytes) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", worker.port)
        writer.write(start)
        while True:
            writer.write(b"x" * 100_000)
            await writer.drain()

    async def test() -> None:
        async with http_worker(max_body_mb=0.125) as worker, _http(worker) as http:
            with pytest.raises(ConnectionError):
                await send_for_ever(worker, b"GET /live HTTP/1.1\r\nhost: localhost\r\nx-big: ")
            with pytest.raises(ConnectionError):
                await send_for_ever(worker, POST_CHAT + b"content-length: 999999999\r\n\r\n")
            assert (await http.get("/live")).status_code == 200

    run(test)


def test_a_connection_too_many_is_refused() -> None:
    async def test() -> None:
        async with http_worker(max_connections=1) as worker, _http(worker) as http, _http(worker) as other:
            assert (await http.get("/live")).status_code == 200
            refused = await other.get("/live")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert _error(refused)["message"] == "1 connections are open already (--max-connections)"
            assert (await http.get("/live")).status_code == 200

    run(test)


def test_requests_beyond_the_limit_get_429_with_retry_after() -> None:
    async def test() -> None:
        async with http_worker(max_queued_requests=2) as worker, _http(worker) as http:
            worker.upstream.behave = say_then_hold("", "done")
            waiting = [
                asyncio.create_task(http.post(CHAT, json={"model": "stub", "messages": HELLO})) for _ in range(2)
            ]
            await worker.upstream.until(lambda: len(worker.upstream.requests()) == 2)
            refused = await http.post(CHAT, json={"model": "stub", "messages": HELLO})
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert _error(refused)["code"] == "overloaded"
            worker.upstream.release.set()
            assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]

    run(test)


def test_retry_after_follows_the_rate_at_which_requests_end() -> None:
    clock = [0.0]

    async def refused_after(worker: Worker, http: httpx2.AsyncClient, duration_s: float) -> str:
        """Retry-After of a request beside two others, which then are answered ``duration_s`` after they began."""
        worker.upstream.release.clear()
        so_far = len(worker.upstream.requests())
        waiting = [asyncio.create_task(http.post(CHAT, json={"model": "stub", "messages": HELLO})) for _ in range(2)]
        await worker.upstream.until(lambda: len(worker.upstream.requests()) == so_far + 2)
        refused = await http.post(CHAT, json={"model": "stub", "messages": HELLO})
        assert refused.status_code == 429
        clock[0] += duration_s
        worker.upstream.release.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200, 200]
        await worker.idle()
        return refused.headers["retry-after"]

    async def test() -> None:
        async with http_worker(max_queued_requests=2, now=lambda: clock[0]) as worker, _http(worker) as http:
            worker.upstream.behave = say_then_hold("", "done")
            assert await refused_after(worker, http, 30.0) == "1"  # nothing has ended yet
            clock[0] += 3600  # idle
            assert await refused_after(worker, http, 3.0) == "15"  # two at a time, 30 s each
            assert await refused_after(worker, http, 900.0) == "9"  # 16.5 s on average
            assert await refused_after(worker, http, 0.0) == "120"

    run(test)


@pytest.mark.parametrize(("finish", "status"), [("overloaded", 429), ("abort", 503)])
def test_refusals_of_the_engine_carry_its_estimate(finish: str, status: int) -> None:
    async def refuse(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, finish=finish, message="too many wait", retry_after_s=33.2)

    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            worker.upstream.behave = refuse
            refused = await http.post(CHAT, json={"model": "stub", "messages": PICTURE})
            assert (refused.status_code, refused.headers["retry-after"]) == (status, "34")

    run(test)


def test_sigterm_lets_live_requests_end_and_refuses_new_ones_on_any_connection() -> None:
    async def test() -> None:
        async with AsyncExitStack() as stack:
            worker = await stack.enter_async_context(http_worker())
            http = await stack.enter_async_context(_http(worker))
            fresh = await stack.enter_async_context(_http(worker))
            assert (await http.get("/health")).status_code == 200
            worker.upstream.behave = say_then_hold("first ", "last")
            client = await stack.enter_async_context(worker.client())
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True)
            os.kill(os.getpid(), signal.SIGTERM)
            await worker.until(lambda: not worker.context.admission.ready)
            for connection in (http, fresh):
                refused = await connection.post(CHAT, json={"model": "stub", "messages": HELLO})
                assert refused.status_code == 503
                assert (await connection.get("/health")).json()["phase"] == "draining"
            worker.upstream.release.set()
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == "first last"
            await worker.serving

    run(test)


@pytest.mark.parametrize("nbytes", [2_000, 400_000], ids=["short", "received directly"])
def test_sigterm_lets_a_request_end_whose_body_is_still_arriving(nbytes: int) -> None:
    """Also if the requests whose bodies had arrived before the signal end first."""

    async def first_ends_first(upstream: Upstream, request: GenerateRequest) -> None:
        if len(upstream.requests()) == 2:
            second_started.set()
            await upstream.release.wait()
        await second_started.wait()
        upstream.reply(request, b"x", finish="stop")

    second_started = asyncio.Event()

    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            worker.upstream.behave = first_ends_first
            first = asyncio.create_task(http.post(CHAT, json={"model": "stub", "messages": HELLO}))
            await worker.upstream.until(lambda: len(worker.upstream.requests()) == 1)
            body = json.dumps({"model": "stub", "messages": HELLO, "metadata": {"a": "x" * nbytes}}).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            writer.write(POST_CHAT + b"content-length: %d\r\n\r\n" % len(body))
            writer.write(body[: nbytes // 2])
            await worker.until(lambda: worker.context.admission.in_flight == 2)
            os.kill(os.getpid(), signal.SIGTERM)
            await worker.until(lambda: not worker.context.admission.ready)
            writer.write(body[nbytes // 2 :])
            assert (await first).status_code == 200
            await worker.until(lambda: worker.context.admission.in_flight == 1)
            for _ in range(100):
                await asyncio.sleep(0)
            worker.upstream.release.set()
            assert b" 200 " in await reader.readline()
            writer.close()
            await worker.serving

    run(test)


def test_sigterm_waits_for_a_body_only_until_the_shutdown_timeout() -> None:
    async def test() -> None:
        async with http_worker(shutdown_timeout=0.05) as worker:
            _, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            writer.write(POST_CHAT + b"content-length: 1000\r\n\r\n{")
            await worker.until(lambda: worker.context.admission.in_flight == 1)
            os.kill(os.getpid(), signal.SIGTERM)
            await worker.serving
            writer.close()

    run(test)


def test_a_retiring_worker_serves_its_connections_to_their_end_and_accepts_no_more() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http, _http(worker) as late, worker.client() as client:
            assert (await http.get("/live")).status_code == 200
            worker.upstream.behave = say_then_hold("first ", "last")
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True)
            await worker.upstream.until(lambda: len(worker.upstream.requests()) == 1)
            os.kill(os.getpid(), RETIRE)
            await asyncio.sleep(0)
            unaccepted = asyncio.create_task(late.get("/live"))  # another worker with this socket would accept it
            answer = await http.get("/health")
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
            worker.upstream.release.set()
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "first last"
            await worker.serving
            with pytest.raises(httpx2.TransportError):
                await unaccepted

    run(test)


def test_a_draining_worker_sends_requests_again_to_a_restarted_engine() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = say_then_hold("first ")
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True)
            await worker.upstream.until(lambda: len(worker.upstream.requests()) == 1)
            os.kill(os.getpid(), signal.SIGTERM)
            await worker.until(lambda: not worker.context.admission.ready)
            worker.upstream.lose_requests()
            worker.upstream.behave = say("first and last")
            worker.upstream.say_phase(phase="draining", ready=False, engine_epoch=1)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "first and last"
            await worker.serving

    run(test)


def test_requests_that_outlast_the_shutdown_timeout_are_aborted_with_an_error() -> None:
    async def test() -> None:
        async with http_worker(shutdown_timeout=0.0) as worker, worker.client() as client:
            worker.upstream.behave = say_then_hold("first ")
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True)
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(openai.APIError, match="shutting down"):
                await _read(stream)
            await worker.serving
            assert len(worker.upstream.aborts()) == 1

    run(test)


def test_a_request_beyond_the_servers_timeout_is_ended_with_504() -> None:
    async def test() -> None:
        async with http_worker(request_timeout=0.1) as worker, worker.client() as client:
            worker.upstream.behave = say_then_hold("first ")
            with pytest.raises(openai.InternalServerError, match=r"not answered within 0\.1 s") as raised:
                await client.chat.completions.create(model="stub", messages=HELLO, extra_body={"timeout": 60})
            assert (raised.value.status_code, raised.value.code) == (504, "deadline_exceeded")
            await worker.idle()
            assert len(worker.upstream.aborts()) == 1

    run(test)


def test_a_stream_beyond_its_own_timeout_is_ended_with_an_error_event() -> None:
    async def test() -> None:
        async with http_worker(request_timeout=60.0) as worker, worker.client() as client:
            worker.upstream.behave = say_then_hold("first ")
            stream = await client.chat.completions.create(
                model="stub", messages=HELLO, stream=True, extra_body={"timeout": 0.2}
            )
            with pytest.raises(openai.APIError, match=r"not answered within 0\.2 s"):
                await _read(stream)
            await worker.idle()
            assert len(worker.upstream.aborts()) == 1

    run(test)


async def _read(stream: openai.AsyncStream[Any]) -> None:
    async for _ in stream:
        pass


def test_errors_about_the_context_length_have_both_numbers() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            long = [{"role": "user", "content": "x" * 600}]
            with pytest.raises(openai.BadRequestError, match=r"600 .* 512") as refused:
                await client.chat.completions.create(model="stub", messages=long)
            assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")
            with pytest.raises(openai.BadRequestError, match=r"511 .* 512") as refused:
                await client.chat.completions.create(model="stub", messages=HELLO, max_tokens=511)
            assert refused.value.param == "max_tokens"

    run(test)


def test_a_bug_in_one_request_is_a_500_and_the_next_is_served(caplog: pytest.LogCaptureFixture) -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, [-5], finish="stop")

    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            worker.upstream.behave = behave
            broken = await http.post(CHAT, json={"model": "stub", "messages": HELLO})
            assert (broken.status_code, _error(broken)["type"]) == (500, "server_error")
            worker.upstream.behave = say("fine")
            assert (await http.post(CHAT, json={"model": "stub", "messages": HELLO})).status_code == 200
            await worker.idle()

    run(test)
    assert "failed" in caplog.text
