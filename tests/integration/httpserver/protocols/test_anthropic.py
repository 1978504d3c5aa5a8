"""Anthropic's messages through its own SDK: whole, streamed, pictures, counts, pings, errors and headers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest

from mmserve.httpserver.api.anthropic import answer
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import TIMEOUT_S, Upstream, say, say_then_hold
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.integration.httpserver.protocols.test_tools import CALL, HERMES
from tests.integration.httpserver.protocols.test_tools import WEATHER as FUNCTION

HELLO = [{"role": "user", "content": "hi"}]
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
SEEN = [{"role": "user", "content": [{"type": "text", "text": "what "}, PICTURE, {"type": "text", "text": "?"}]}]
BODY = {"model": "stub", "max_tokens": 20, "messages": HELLO}
PATH = "/v1/messages"
WEATHER = {"name": "weather", "input_schema": FUNCTION["function"]["parameters"]}


@asynccontextmanager
async def client_of(worker: Worker, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    options = {"api_key": "none", "max_retries": 0, "timeout": TIMEOUT_S} | options
    async with anthropic.AsyncAnthropic(base_url=worker.url, **options) as client:
        yield client


def _http(worker: Worker, **headers: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=worker.url, headers=headers, timeout=TIMEOUT_S)


async def events_of(worker: Worker, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    """The events of a streamed answer: each name and its data."""
    async with _http(worker) as http:
        streamed = await http.post(PATH, json=BODY | {"stream": True} | fields)
    assert streamed.status_code == 200, streamed.text
    found = []
    for block in streamed.text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        assert found[-1][0] == found[-1][1]["type"]
    return found


def test_a_whole_answer() -> None:
    async def test() -> None:
        async with http_worker() as worker, client_of(worker) as client:
            worker.upstream.behave = say("héllo")
            message = await client.messages.create(model="stub", max_tokens=20, messages=HELLO, system="be")
            assert [block.to_dict() for block in message.content] == [
                {"type": "text", "text": "héllo", "citations": None}
            ]
            assert (message.role, message.model, message.stop_reason) == ("assistant", "stub", "end_turn")
            usage = message.usage
            assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (1, 3, 6)
            assert message.id.startswith("msg_")
            assert message._request_id

    run(test)


def test_a_streamed_answer_equals_the_whole_one() -> None:
    async def test() -> None:
        async with http_worker() as worker, client_of(worker) as client:
            worker.upstream.behave = say("grün 你好 🎉", group=2)
            whole = await client.messages.create(model="stub", max_tokens=30, messages=SEEN)
            async with client.messages.stream(model="stub", max_tokens=30, messages=SEEN) as stream:
                streamed = await stream.get_final_message()
            for message in (whole, streamed):
                message.id = ""
            assert streamed.to_dict() == whole.to_dict()
            assert streamed.content[0].text == "grün 你好 🎉"  # type: ignore[union-attr]

    run(test)


def test_the_events_of_a_stream_in_order() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            events = await events_of(worker, context_management={"edits": []})
            names = [name for name, _ in events]
            assert names[:2] == ["message_start", "content_block_start"]
            assert set(names[2:-3]) == {"content_block_delta"}
            assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
            start = events[0][1]["message"]
            assert (start["content"], start["stop_reason"]) == ([], None)
            assert (start["usage"]["input_tokens"], start["usage"]["output_tokens"]) == (2, 0)
            last = events[-2][1]
            assert last["delta"] == {
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "stop_details": None,
                "container": None,
            }
            assert last["context_management"] == {"applied_edits": []}

    run(test)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "text", "reason", "sequence"),
    [
        ({"stop_sequences": ["zzz", "TOP"]}, "one S", "stop_sequence", "TOP"),
        ({"max_tokens": 3}, "one", "max_tokens", None),
        (
            {"max_tokens": 2000, "messages": [{"role": "user", "content": "x" * 507}]},
            "one S",
            "model_context_window_exceeded",
            None,
        ),
        ({"messages": [*HELLO, {"role": "assistant", "content": "And "}]}, "one STOP", "end_turn", None),
    ],
    ids=["stop sequence", "max_tokens", "context", "prefill"],
)
def test_why_an_answer_ended(
    stream: bool, fields: dict[str, Any], text: str, reason: str, sequence: str | None
) -> None:
    async def test() -> None:
        async with http_worker() as worker, client_of(worker) as client:
            worker.upstream.behave = say("one STOP")
            request: dict[str, Any] = BODY | fields
            if stream:
                async with client.messages.stream(**request) as events:
                    message = await events.get_final_message()
            else:
                message = await client.messages.create(**request)
            assert message.content[0].text == text  # type: ignore[union-attr]
            assert (message.stop_reason, message.stop_sequence) == (reason, sequence)

    run(test)


def test_the_count_of_tokens_equals_the_usage_and_leases_nothing() -> None:
    async def test() -> None:
        async with http_worker() as worker, client_of(worker) as client:
            result = {"type": "tool_result", "tool_use_id": "t1", "content": [PICTURE, {"type": "text", "text": "a"}]}
            use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
            messages = [*SEEN, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
            count = await client.messages.count_tokens(model="stub", messages=messages, system="sys")
            assert worker.leases.held == []
            await worker.idle()
            message = await client.messages.create(model="stub", max_tokens=9, messages=messages, system="sys")
            assert message.usage.cache_read_input_tokens is not None
            assert count.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens == 18
            assert len(worker.leases.held) == 1

    run(test)


def test_message_start_comes_when_the_prompt_is_built_and_pings_while_the_images_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer, "PING_S", 0.05)

    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            worker.leases.gate.clear()
            worker.upstream.behave = say_then_hold("", "seen")
            names: list[str] = []
            async with http.stream("POST", PATH, json=BODY | {"stream": True, "messages": SEEN}) as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("event: "):
                        names.append(line.removeprefix("event: "))
                        if names[-2:] == ["ping", "ping"] and not worker.leases.gate.is_set():
                            worker.leases.gate.set()
                        elif "message_start" in names and names[-1] == "ping":
                            worker.upstream.release.set()
            assert names[:2] == ["ping", "ping"]
            start = names.index("message_start")
            assert "ping" in names[start:]
            assert [name for name in names if name != "ping"][1:] == [
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
            await worker.idle()

    run(test)


def test_an_error_before_the_first_event_has_its_status_and_a_later_one_is_an_event() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, b"some")
        upstream.reply(request, finish="error", message="the engine is broken")

    async def test() -> None:
        async with http_worker() as worker, client_of(worker) as client:
            url = {"type": "url", "url": "http://broken/"}
            broken = [{"role": "user", "content": [{"type": "image", "source": url}]}]
            with pytest.raises(
                anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.source\.url: cannot read"
            ):
                await client.messages.create(model="stub", max_tokens=9, messages=broken, stream=True)
            worker.upstream.behave = behave
            with pytest.raises(anthropic.APIStatusError, match="the engine is broken") as raised:
                async with client.messages.stream(model="stub", max_tokens=9, messages=HELLO) as stream:
                    await stream.get_final_message()
            assert raised.value.body["error"]["type"] == "api_error"  # type: ignore[index]
            events = await events_of(worker)
            assert [events[0][0], events[-1][0]] == ["message_start", "error"]
            await worker.idle()

    run(test)


def test_errors_have_anthropics_form_and_headers() -> None:
    async def test() -> None:
        async with http_worker(api_key="secret") as worker, client_of(worker) as stranger:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await stranger.messages.create(model="stub", max_tokens=9, messages=HELLO)
            body: Any = refused.value.body
            assert (body["type"], body["error"]["type"]) == ("error", "authentication_error")
            assert body["request_id"] == refused.value.request_id
            long = [{"role": "user", "content": "x" * 600}]
            for options in ({"auth_token": "secret", "api_key": None}, {"api_key": "secret"}):
                async with client_of(worker, **options) as client:
                    with pytest.raises(anthropic.NotFoundError, match="model: the model 'claude-haiku' is not served"):
                        await client.messages.create(model="claude-haiku", max_tokens=9, messages=HELLO)
                    with pytest.raises(anthropic.BadRequestError, match="prompt is too long: 600 tokens > 511 maximum"):
                        await client.messages.create(model="stub", max_tokens=9, messages=long)
                    with pytest.raises(anthropic.NotFoundError):
                        await client.models.retrieve("other")
            async with _http(worker, authorization="Bearer secret") as http:
                wrong = await http.get(PATH)
                assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
                assert (await http.head("/")).status_code == (await http.get("/")).status_code == 200
            async with _http(worker) as http:
                assert (await http.get("/")).status_code == 200

    run(test)


def test_a_thread_is_refused_by_the_error_after_which_sdks_send_the_whole_conversation() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
                refused = await http.post(PATH, json=BODY | {"thread": thread})
                assert refused.status_code == 400
                error = refused.json()["error"]
                assert error["message"].startswith("thread: ")
                assert error["details"] == {"error_code": "thread_unsupported_request"}
            assert "details" not in (await http.post(PATH, json=BODY | {"top_p": 2})).json()["error"]
            assert (await http.post(PATH, json=BODY | {"thread": None})).status_code == 200

    run(test)


def test_a_full_queue_is_529() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, finish="overloaded", message="the queue is full")

    async def test() -> None:
        async with http_worker() as worker, _http(worker, **{"x-request-id": "mine"}) as http:
            worker.upstream.behave = behave
            refused = await http.post(PATH, json=BODY)
            assert refused.status_code == 529
            assert refused.json() == {
                "type": "error",
                "error": {"type": "overloaded_error", "message": "the queue is full"},
                "request_id": "mine",
            }
            assert int(refused.headers["retry-after"]) > 0
            assert refused.headers["request-id"] == refused.headers["x-request-id"] == "mine"

    run(test)


def test_the_list_of_models_is_read_by_both_sdks() -> None:
    async def test() -> None:
        async with http_worker() as worker, client_of(worker) as client, worker.client() as openai_client:
            page = await client.models.list()
            assert [(model.id, model.type, model.max_input_tokens) for model in page.data] == [("stub", "model", 511)]
            assert (page.first_id, page.last_id, page.has_more) == ("stub", "stub", False)
            assert (await client.models.retrieve("stub")).created_at.year >= 2024
            assert [model.owned_by async for model in openai_client.models.list()] == ["mmserve"]

    run(test)


def test_versions_and_betas_are_accepted() -> None:
    async def test() -> None:
        headers = {"anthropic-version": "2031-01-01", "anthropic-beta": "a-2025-01-01,b", "x-api-key": "k"}
        async with http_worker() as worker, _http(worker, **headers) as http:
            answer = await http.post(f"{PATH}?beta=true", json=BODY)
            assert answer.status_code == 200
            counted = await http.post(f"{PATH}/count_tokens?beta=true", json=BODY)
            assert counted.json() == {"input_tokens": 2}

    run(test)


def test_a_client_that_leaves_aborts_its_request() -> None:
    async def test() -> None:
        async with http_worker() as worker, client_of(worker) as client:
            worker.upstream.behave = say_then_hold("first ")
            async with client.messages.stream(model="stub", max_tokens=9, messages=SEEN) as stream:
                async for text in stream.text_stream:
                    assert text == "first "
                    break
            await worker.idle()
            assert len(worker.upstream.aborts()) == 1
            assert worker.leases.released == worker.leases.held

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_thoughts_text_and_calls_are_blocks(stream: bool) -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker, client_of(worker) as client:
            worker.upstream.behave = say(f"<think>\nHm.\n</think>\n\nLet me see. {CALL}")
            request: dict[str, Any] = BODY | {"max_tokens": 300, "tools": [WEATHER]}
            if stream:
                async with client.messages.stream(**request) as events:
                    message = await events.get_final_message()
            else:
                message = await client.messages.create(**request)
            thought, text, call = (block.to_dict() for block in message.content)
            assert (thought["type"], thought["thinking"]) == ("thinking", "Hm.")
            assert (text["type"], text["text"]) == ("text", "Let me see.")
            assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Paris"})
            assert str(call["id"]).startswith("toolu_")
            assert message.stop_reason == "tool_use"

    run(test)


def test_a_required_call_is_a_grammar() -> None:
    async def test() -> None:
        async with http_worker(template=HERMES) as worker, client_of(worker) as client:
            worker.upstream.behave = say(CALL)
            choice: dict[str, Any] = {"type": "any", "disable_parallel_tool_use": True}
            request: dict[str, Any] = BODY | {"max_tokens": 300, "tools": [WEATHER], "tool_choice": choice}
            message = await client.messages.create(**request)
            assert message.stop_reason == "tool_use"
            (sent,) = worker.upstream.requests()
            assert "weather" in sent.sampling.grammar

    run(test)


def test_a_failed_count_gives_back_what_it_held() -> None:
    async def test() -> None:
        async with http_worker() as worker, _http(worker) as http:
            url = {"type": "url", "url": "http://broken/"}
            broken = [{"role": "user", "content": [{"type": "image", "source": url}]}]
            refused = await http.post(f"{PATH}/count_tokens", json={"model": "stub", "messages": broken})
            assert refused.status_code == 400
            assert (await http.post(f"{PATH}/count_tokens", json={"model": "stub"})).status_code == 400
            await worker.idle()

    run(test)


def test_an_error_in_a_stream_has_the_requests_id() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, b"one")
        upstream.reply(request, finish="error", message="not finite")

    async def test() -> None:
        async with http_worker() as worker, _http(worker, **{"x-request-id": "mine"}) as http:
            worker.upstream.behave = behave
            answer = await http.post(PATH, json=BODY | {"stream": True})
            assert answer.status_code == 200
            *_, event = answer.text.strip().split("\n\n")
            name, _, data = event.partition("\ndata: ")
            assert name == "event: error"
            assert json.loads(data)["request_id"] == answer.headers["request-id"] == "mine"

    run(test)


def test_every_name_of_the_model_is_listed_and_answered() -> None:
    async def test() -> None:
        async with http_worker(served_model_name=("stub", "claude-small")) as worker, _http(worker) as http:
            for name in ("stub", "claude-small", "stub-7b"):
                answer = await http.post(PATH, json=BODY | {"model": name})
                assert (answer.status_code, answer.json()["model"]) == (200, "stub")
            listed = (await http.get("/v1/models")).json()
            assert [card["id"] for card in listed["data"]] == ["stub", "claude-small"]
            assert (listed["first_id"], listed["last_id"]) == ("stub", "claude-small")
            assert (await http.get("/v1/models/claude-small")).json()["id"] == "claude-small"
            assert (await http.get("/v1/models/stub-7b")).json()["id"] == "stub"
            unknown = await http.post(PATH, json=BODY | {"model": "claude-large"})
            assert unknown.status_code == 404
            assert "'stub', 'claude-small' are" in unknown.json()["error"]["message"]

    run(test)


@pytest.mark.parametrize("stream", [False, True])
def test_usage_says_how_many_tokens_were_thoughts(stream: bool) -> None:
    template = "{{ messages }}{{ enable_thinking }}<think></think>"

    async def test() -> None:
        async with http_worker(template=template, reasoning_parser="think") as worker, _http(worker) as http:
            worker.upstream.behave = say("<think>so</think>yes")
            answer = await http.post(PATH, json=BODY | {"stream": stream, "max_tokens": 100})
            if stream:
                (data,) = [
                    line for line in answer.text.splitlines() if line.startswith("data: ") and "message_delta" in line
                ]
                usage = json.loads(data.removeprefix("data: "))["usage"]
            else:
                usage = answer.json()["usage"]
            assert 0 < usage["output_tokens_details"]["thinking_tokens"] < usage["output_tokens"] == 20

    run(test)
