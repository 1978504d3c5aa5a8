"""The access log and the traces of requests: one line each, with what an operator asks for."""

from __future__ import annotations

import logging
from typing import Any

import httpx2
import pytest

from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream, say_then_hold
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.integration.httpserver.protocols.test_chat import HELLO, PICTURE

CHAT = "/v1/chat/completions"
ENGINE = {"turn": 0.5, "image_decode": 0.25, "encode": 0.125, "queue": 1.0, "prefill": 2.0, "decode": 3.0}


def _fields(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [record.__dict__["fields"] for record in caplog.records if record.name == name]


def _http(worker: Worker) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=worker.url, timeout=20)


async def _reply_with_stage_times(upstream: Upstream, request: GenerateRequest) -> None:
    upstream.reply(request, b"ab", finish="stop", stage_times=ENGINE)


@pytest.mark.parametrize("stream", [True, False])
def test_a_trace_has_every_stage_and_the_id_of_the_answer(caplog: pytest.LogCaptureFixture, stream: bool) -> None:
    async def test() -> str:
        async with http_worker(trace_requests=True) as worker, _http(worker) as http:
            worker.upstream.behave = _reply_with_stage_times
            answer = await http.post(CHAT, json={"model": "stub", "messages": PICTURE, "stream": stream})
            await worker.until(lambda: bool(_fields(caplog, "mmserve.trace")))
            return answer.text

    caplog.set_level(logging.INFO, "mmserve.trace")
    text = run(test)
    (trace,) = _fields(caplog, "mmserve.trace")
    assert trace["request"] in text
    assert (trace["outcome"], trace["images"], trace["completion_tokens"]) == ("stop", 1, 2)
    assert {stage: trace["stages_ms"][stage] for stage in ENGINE} == {stage: 1e3 * s for stage, s in ENGINE.items()}
    assert set(trace["stages_ms"]) == {"body", "prompt", "send", *ENGINE}
    assert trace["total_ms"] >= trace["stages_ms"]["body"] > 0


def test_traces_of_aborted_and_refused_requests_say_so(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with http_worker(trace_requests=True, request_timeout=0.05) as worker, _http(worker) as http:
            worker.upstream.behave = say_then_hold("a")
            assert (await http.post(CHAT, json={"model": "stub", "messages": HELLO})).status_code == 504
            await worker.until(lambda: len(_fields(caplog, "mmserve.trace")) == 1)
        async with http_worker(trace_requests=True) as worker, _http(worker) as http:
            worker.upstream.behave = say_then_hold("a")
            async with http.stream("POST", CHAT, json={"model": "stub", "messages": HELLO, "stream": True}):
                pass  # leaves before the answer has ended
            await worker.until(lambda: len(_fields(caplog, "mmserve.trace")) == 2)

    caplog.set_level(logging.INFO, "mmserve.trace")
    run(test)
    timed_out, aborted = _fields(caplog, "mmserve.trace")
    assert timed_out["outcome"] not in ("stop", "aborted", "")
    assert aborted["outcome"] == "aborted"


def test_without_the_option_nothing_is_traced(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            assert (await http.post(CHAT, json={"model": "stub", "messages": HELLO})).status_code == 200

    caplog.set_level(logging.INFO, "mmserve")
    run(test)
    assert not _fields(caplog, "mmserve.trace")
    assert not [record for record in caplog.records if record.name == "mmserve.access"]


def test_the_access_log_has_a_line_for_every_response(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> int:
        async with http_worker(access_log=True) as worker, _http(worker) as http:
            answer = await http.post(CHAT, json={"model": "stub", "messages": HELLO}, headers={"x-request-id": "mine"})
            await http.post(CHAT, json={"model": "stub", "messages": HELLO, "temperature": -1})
            await http.get("/nowhere/" + 500 * "x")
            return len(answer.content)

    caplog.set_level(logging.INFO, "mmserve.access")
    nbytes = run(test)
    answered, refused, unknown = _fields(caplog, "mmserve.access")
    assert answered | {"ms": 0} == {
        "client": "127.0.0.1",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "bytes": nbytes,
        "ms": 0,
        "x_request_id": "mine",
        "key": None,
    }
    assert answered["ms"] > 0
    assert (refused["status"], unknown["status"]) == (400, 404)
    assert len(unknown["path"]) == 200
