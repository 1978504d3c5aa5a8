"""A stream that a front relays can be gone on with by another server, after any event and any token: equal text."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mmserve.httpserver.request.task import RequestTask
from mmserve.ipc.links.cluster_key import ClusterKey, written
from mmserve.messages.relay import (
    BY_KEY,
    GIVEN_UP,
    RELAY_HEADER,
    SERVER_HEADER,
    Relay,
    Sampled,
    SampledSoFar,
    commented,
    sealed,
)
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Behaviour, Upstream, say, say_then_hold
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.integration.httpserver.protocols.test_chat import HELLO
from tests.integration.httpserver.protocols.test_tools import CALL, HERMES, WEATHER

KEY = ClusterKey.of(bytes(32))
TEXT = "A café — 🐦; END more"
CHAT = "/v1/chat/completions"
REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "chat": (CHAT, TEXT, {"messages": HELLO, "stream_options": {"include_usage": True}}),
    "two choices": (CHAT, TEXT, {"messages": HELLO, "n": 2}),
    "stop string": (CHAT, TEXT, {"messages": HELLO, "stop": "END"}),
    "log-probabilities": (CHAT, TEXT, {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "stop": "END"}),
    "ids of tokens": (CHAT, TEXT, {"messages": HELLO, "return_token_ids": True}),
    "tool calls": (CHAT, f"So: {CALL}{CALL}", {"messages": HELLO, "tools": [WEATHER]}),
    "completion": ("/v1/completions", TEXT, {"prompt": "hi", "logprobs": 1, "max_tokens": 300}),
    "response": ("/v1/responses", TEXT, {"input": "hi", "store": False}),
    "response with calls": (
        "/v1/responses",
        f"So: {CALL}{CALL}",
        {"input": "hi", "store": False, "tools": [{"type": "function", "strict": False} | WEATHER["function"]]},
    ),
    "message": (
        "/v1/messages",
        f"So: {CALL}",
        {
            "messages": HELLO,
            "max_tokens": 300,
            "tools": [{"name": "weather", "input_schema": WEATHER["function"]["parameters"]}],
        },
    ),
}


async def _events(
    worker: Worker, path: str, fields: dict[str, Any], num_events: int = 0, sampled: tuple[Sampled, ...] = ()
) -> list[bytes]:
    """Of a relayed request, comments among them."""
    body = json.dumps({"model": "stub", "stream": True} | fields).encode()
    relay = Relay(request_id="ab" * 16, created_s=77, body_nbytes=len(body), num_events=num_events)
    tail = SampledSoFar(sampled).tail()
    header = sealed(relay, tail, KEY.fronts)
    headers = {"content-type": "application/json", RELAY_HEADER: header}
    async with (
        aiohttp.ClientSession() as session,
        session.post(worker.url + path, data=body + tail, headers=headers) as answer,
    ):
        assert answer.status == 200, await answer.text()
        return [event + b"\n\n" for event in (await answer.read()).split(b"\n\n")[:-1]]


_GROWING = (
    "content", "text", "delta", "arguments", "partial_json", "token_ids", "tokens", "token_logprobs", "top_logprobs",
)  # fmt: skip
"""Texts and lists of a chunk. How many tokens a chunk has depends on how fast the client reads."""


_OF_CHUNKS = ("text_offset", "sequence_number", "completed_at")
"""What depends on how many chunks there are, and when the last one comes."""


def _taken_out(value: Any, place: str, found: dict[str, Any]) -> Any:
    """``value`` without what grows, which is added to ``found`` by its place."""
    if isinstance(value, list):
        return [_taken_out(each, f"{place}.{number}", found) for number, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    rest = {}
    for name, each in value.items():
        if name in _GROWING and isinstance(each, str | list):
            found[f"{place}.{name}"] = each
        elif name not in _OF_CHUNKS:
            rest[name] = _taken_out(each, f"{place}.{name}", found)
    return rest


def _said(events: list[bytes]) -> dict[Any, Any]:
    """What the events say of each choice: neighbours that only go on with each other are one."""
    said: dict[Any, list[list[Any]]] = {}
    for event in events:
        data = event.rpartition(b"data: ")[2].strip()
        found: dict[str, Any] = {}
        rest = _taken_out(json.loads(data), "", found) if data != b"[DONE]" else "[DONE]"
        choice = rest["choices"][0]["index"] if isinstance(rest, dict) and rest.get("choices") else None
        if isinstance(rest, dict) and rest.get("object") == "text_completion":  # the end may come with the last text
            found["finish"] = rest["choices"][0].pop("finish_reason") or ""
            rest["choices"][0].pop("logprobs")
        of_choice = said.setdefault(choice, [])
        if of_choice and of_choice[-1][0] == rest:
            before = of_choice[-1][1]
            of_choice[-1][1] = before | {
                place: before[place] + grown if place in before else grown for place, grown in found.items()
            }
        else:
            of_choice.append([rest, found])
    return said


def _numbers(events: list[bytes]) -> list[int]:
    """Of events that have them."""
    found = (re.search(rb'"sequence_number":(\d+)', event) for event in events)
    return [int(each[1]) for each in found if each is not None]


def _slowly(text: str) -> Behaviour:
    """As ``say``, with time to send each token on its own; on a busy machine some are sent together all the same."""

    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        data = text.encode()
        for at, letter in enumerate(data, start=1):
            upstream.reply(request, [letter], finish="stop" if at == len(data) else None, num_cached_tokens=3)
            await asyncio.sleep(0.002)

    return behave


def _key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(written(KEY.secret))
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("name", REQUESTS)
def test_cut_anywhere_the_rest_comes_from_another_server_with_equal_text(name: str, tmp_path: Path) -> None:
    path, text, fields = REQUESTS[name]

    async def test() -> None:
        async with http_worker(template=HERMES, cluster_key_file=_key_file(tmp_path)) as worker:
            worker.upstream.behave = _slowly(text)
            whole = await _events(worker, path, fields)
            worker.upstream.behave = say(text)
            shown = [event for event in whole if commented(event) is None]
            assert len(shown) > 1
            for cut in [*range(0, len(whole), 1 + len(whole) // 40), len(whole)]:
                known = [commented(event) for event in whole[:cut]]
                sampled = tuple(each for each in known if each is not None)
                num_events = cut - len(sampled)
                rest = await _events(worker, path, fields, num_events, sampled)
                both = shown[:num_events] + [event for event in rest if commented(event) is None]
                assert _said(both) == _said(shown)
                assert _numbers(both) == [*range(len(_numbers(both)))]
            await worker.idle()

    run(test)


def test_the_engine_gets_only_what_is_missing_and_a_finished_answer_is_not_computed(tmp_path: Path) -> None:
    async def test() -> None:
        async with http_worker(cluster_key_file=_key_file(tmp_path)) as worker:
            worker.upstream.behave = say("hello")
            await _events(worker, CHAT, {"messages": HELLO, "n": 2}, 0, (Sampled(1, (104, 101)), Sampled(0, (104,))))
            outputs = {request.id[-1]: len(request.output_ids) // 8 for request in worker.upstream.requests()}
            assert outputs == {"0": 1, "1": 2}
            worker.upstream.received.clear()
            rest = await _events(worker, CHAT, {"messages": HELLO}, 3, (Sampled(0, (104, 105), (), "stop"),))
            assert rest == [b"data: [DONE]\n\n"]
            assert worker.upstream.requests() == []

    run(test)


def test_a_header_that_no_front_has_made_is_refused_and_without_a_secret_it_means_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        body = json.dumps({"model": "stub", "messages": HELLO}).encode()
        relay = Relay(request_id="ab" * 16, created_s=77, body_nbytes=len(body))
        tail = SampledSoFar([Sampled(0, (104,))]).tail()
        header = sealed(relay, tail, KEY.fronts)
        forged = {
            "another secret": (sealed(relay, b"", KEY.encoders), body),
            "other tokens": (header, body + tail[:-1] + b"x"),
            "no header of ours": ("abc", body),
        }

        async def status(worker: Worker, value: str, data: bytes) -> int:
            headers = {"content-type": "application/json", RELAY_HEADER: value}
            async with (
                aiohttp.ClientSession() as session,
                session.post(worker.url + CHAT, data=data, headers=headers) as answer,
            ):
                return answer.status

        async with http_worker(cluster_key_file=_key_file(tmp_path)) as worker:
            for what, (value, data) in forged.items():
                assert await status(worker, value, data) == 403, what
        async with http_worker() as worker:
            assert await status(worker, "abc", body) == 200

    run(test)


def test_a_server_says_what_it_is_and_goes_on_with_no_answer_of_another_kind(tmp_path: Path) -> None:
    async def test() -> None:
        body = json.dumps({"model": "stub", "messages": HELLO}).encode()
        async with http_worker(cluster_key_file=_key_file(tmp_path), caches_by_key=True) as worker:
            worker.upstream.behave = say("hello")
            for numbers, status in (("", 200), ("another", 421)):
                relay = Relay(request_id="ab" * 16, created_s=77, body_nbytes=len(body), numbers=numbers)
                headers = {"content-type": "application/json", RELAY_HEADER: sealed(relay, b"", KEY.fronts)}
                async with (
                    aiohttp.ClientSession() as session,
                    session.post(worker.url + CHAT, data=body, headers=headers) as answer,
                ):
                    assert answer.status == status
                    assert (SERVER_HEADER in answer.headers) == (status == 200)
                    if status == 200:
                        assert answer.headers[SERVER_HEADER].split() == [BY_KEY], "this server has no facts"

    run(test)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages", "/v1/responses"])
def test_a_stream_that_the_server_cannot_end_is_given_up_for_another_one(path: str, tmp_path: Path) -> None:
    """As when a drain ends with requests left. Other clients get an event with the error."""

    async def test() -> None:
        async with http_worker(cluster_key_file=_key_file(tmp_path)) as worker:
            worker.upstream.behave = say_then_hold("hel")
            fields: dict[str, dict[str, Any]] = {
                "/v1/completions": {"prompt": "hi"},
                "/v1/responses": {"input": "hi"},
                "/v1/messages": {"messages": HELLO, "max_tokens": 9},
            }
            stream = asyncio.create_task(_events(worker, path, fields.get(path, {"messages": HELLO})))
            await worker.upstream.until(lambda: bool(worker.upstream.requests()))
            await worker.until(lambda: any(task.deltas.usage.completion_tokens == 3 for task in _running(worker)))
            await worker.context.request_tasks.close()
            events = await stream
            assert events[-1] == GIVEN_UP
            assert not any(b'"error":{' in event for event in events)

    run(test)


def _running(worker: Worker) -> list[RequestTask]:
    return worker.context.request_tasks.oldest(9)
