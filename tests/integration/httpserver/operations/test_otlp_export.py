"""Traces of requests at a real OTLP receiver: names of the conventions, the client's trace, and nothing that a client
wrote. A receiver that is away delays nothing."""

from __future__ import annotations

import logging

import httpx2
import pytest

from mmserve.httpserver.request.tracing import otlp_export
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream, say, say_then_hold
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.fakes.processes.samples import counted
from tests.integration.httpserver.protocols.test_chat import HELLO

pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
from tests.fakes.http.otlp_receiver import Receiver, receiver, values_of

CHAT = "/v1/chat/completions"
TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENGINE = {"turn": 2e-5, "image_decode": 1e-5, "encode": 3e-5, "queue": 1e-5, "prefill": 4e-5, "decode": 2e-5}
SECRET = "Can4ryOfTheTest"


async def _reply_with_stage_times(upstream: Upstream, request: GenerateRequest) -> None:
    upstream.reply(request, b"ab", finish="stop", stage_times=ENGINE)


def _http(worker: Worker) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=worker.url, timeout=20)


def _dropped(worker: Worker, reason: str) -> float:
    return counted(worker.context.endpoints).get(("otlp_traces_dropped", reason), 0)


def test_a_request_is_a_span_with_a_child_for_each_stage_in_the_trace_of_its_client() -> None:
    body = {
        "model": "stub",
        "messages": [
            {
                "role": "user",
                "name": f"{SECRET}-user",
                "content": [
                    {"type": "text", "text": f"{SECRET}-text"},
                    {"type": "image_url", "image_url": {"url": f"data:{SECRET}-image"}},
                ],
            }
        ],
        "temperature": 0.5,
        "max_tokens": 7,
        "stop": [f"{SECRET}-stop"],
        "cache_salt": f"{SECRET}-salt",
    }

    async def test(received: Receiver) -> str:
        async with http_worker(otlp_traces_endpoint=received.url) as worker, _http(worker) as http:
            worker.upstream.behave = _reply_with_stage_times
            headers = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "authorization": f"Bearer {SECRET}-key"}
            answer = await http.post(CHAT, json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            assert _dropped(worker, "not_sent") == 0
            return str(answer.json()["id"])

    with receiver() as received:
        answer_id = run(lambda: test(received))
    (request,) = received.requests()
    assert request.name == "chat stub"
    assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert request.status.code == 0
    values = values_of(request.attributes)
    port = values.pop("server.port")
    assert isinstance(port, int)
    assert values == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mmserve",
        "gen_ai.output.type": "text",
        "gen_ai.request.model": "stub",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.request.max_tokens": 7,
        "gen_ai.response.model": "stub",
        "gen_ai.response.id": answer_id,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": values["gen_ai.usage.input_tokens"],
        "gen_ai.usage.output_tokens": 2,
        "http.route": CHAT,
        "mmserve.images": 1,
        "server.address": "127.0.0.1",
    }
    assert values["gen_ai.usage.input_tokens"] > 0
    stages = received.children(request)
    assert set(stages) == {"body", "prompt", "send", *ENGINE}
    for stage in stages.values():
        assert request.start_time_unix_nano <= stage.start_time_unix_nano <= stage.end_time_unix_nano
        assert stage.end_time_unix_nano <= request.end_time_unix_nano
    for before, after in zip(ENGINE, list(ENGINE)[1:], strict=False):
        assert abs(stages[after].start_time_unix_nano - stages[before].end_time_unix_nano) < 1000
    assert {each["service.name"] for each in received.resources} == {"mmserve"}
    assert received.paths == {"/v1/traces"}
    assert SECRET.encode() not in b"".join(received.bodies)


def test_failed_and_aborted_requests_are_marked_as_such() -> None:
    async def test(received: Receiver) -> None:
        options = {"otlp_traces_endpoint": received.url + "/custom", "request_timeout": 0.05}
        async with http_worker(**options) as worker, _http(worker) as http:
            worker.upstream.behave = say_then_hold("a")
            assert (await http.post(CHAT, json={"model": "stub", "messages": HELLO})).status_code == 504
        async with http_worker(otlp_traces_endpoint=received.url) as worker, _http(worker) as http:
            worker.upstream.behave = say_then_hold("a")
            async with http.stream("POST", CHAT, json={"model": "stub", "messages": HELLO, "stream": True}):
                pass  # leaves before the answer has ended
            await worker.idle()

    with receiver() as received:
        run(lambda: test(received))
    assert [values_of(span.attributes)["error.type"] for span in received.requests()] == [
        "deadline_exceeded",
        "aborted",
    ]
    assert {span.status.code for span in received.requests()} == {2}
    assert received.paths == {"/custom", "/v1/traces"}


def test_a_trace_that_the_client_does_not_sample_is_not_sent_and_a_malformed_one_is_not_continued() -> None:
    async def test(received: Receiver) -> None:
        async with http_worker(otlp_traces_endpoint=received.url) as worker, _http(worker) as http:
            for traceparent in (f"00-{TRACE_ID}-{SPAN_ID}-00", f"00-{TRACE_ID}-{SPAN_ID}-01" + 5000 * "0", "00-zz"):
                answer = await http.post(
                    CHAT, json={"model": "stub", "messages": HELLO}, headers={"traceparent": traceparent}
                )
                assert answer.status_code == 200

    with receiver() as received:
        run(lambda: test(received))
    spans = received.requests()
    assert len(spans) == 2
    assert not any(span.parent_span_id for span in spans)
    assert TRACE_ID not in {span.trace_id.hex() for span in spans}


def test_a_receiver_that_hangs_delays_no_request_and_what_does_not_fit_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(otlp_export, "MAX_WAITING", 2)
    monkeypatch.setattr(otlp_export, "LINGER_S", 0.0)

    async def test(received: Receiver) -> None:
        received.gate.clear()
        async with http_worker(otlp_traces_endpoint=received.url) as worker, _http(worker) as http:
            worker.upstream.behave = say("done")
            assert (await http.post(CHAT, json={"model": "stub", "messages": HELLO})).status_code == 200
            await worker.until(lambda: received.posts == 1)
            for _ in range(5):
                assert (await http.post(CHAT, json={"model": "stub", "messages": HELLO})).status_code == 200
            await worker.until(lambda: _dropped(worker, "buffer_full") == 3)
            received.gate.set()

    with receiver() as received:
        run(lambda: test(received))
    assert len(received.requests()) == 3


def test_traces_that_a_receiver_refuses_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp_export, "LINGER_S", 0.0)
    caplog.set_level(logging.CRITICAL, "opentelemetry")

    async def test(received: Receiver) -> None:
        received.status = 400
        async with http_worker(otlp_traces_endpoint=received.url) as worker, _http(worker) as http:
            assert (await http.post(CHAT, json={"model": "stub", "messages": HELLO})).status_code == 200
            await worker.until(lambda: _dropped(worker, "not_sent") == 1)

    with receiver() as received:
        run(lambda: test(received))


def test_a_worker_ends_though_its_receiver_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_export, "CLOSE_S", 0.05)

    async def test(received: Receiver) -> None:
        received.gate.clear()
        async with http_worker(otlp_traces_endpoint=received.url) as worker, _http(worker) as http:
            assert (await http.post(CHAT, json={"model": "stub", "messages": HELLO})).status_code == 200

    with receiver() as received:
        run(lambda: test(received))
        assert not received.requests()
