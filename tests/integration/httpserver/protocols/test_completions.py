"""Completions through the OpenAI client: several prompts and choices, echo, log-probabilities, streamed and whole."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import openai
import pytest

from mmserve.messages.logprobs import NO_TOKEN, pack
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream, say
from tests.fakes.http.http_worker import Worker, http_worker, run


def prompt_of(request: GenerateRequest) -> list[int]:
    return list(memoryview(request.prompt_ids).cast("q"))


async def score_and_say(upstream: Upstream, request: GenerateRequest) -> None:
    """Rows of the prompt two at a time, then the text " end" as far as wanted. Logprob of token i: -i."""
    ids, top = prompt_of(request), request.sampling.prompt_logprobs
    if top is not None:
        rows = [
            pack([(id, -float(place)), *((id + 1 + rank, -0.25 - rank) for rank in range(top))])
            for place, id in enumerate(ids[1:], 1)
        ]
        for start in range(0, len(rows), 2):
            upstream.reply(request, prompt_logprobs=b"".join(rows[start : start + 2]))
            await asyncio.sleep(0)
    if not request.sampling.max_tokens:
        upstream.reply(request, finish="length")
        return
    await say(" end", group=2)(upstream, request)


async def fold(stream: Any) -> tuple[dict[int, dict[str, Any]], list[dict[str, Any]]]:
    """The choices of a stream put together, and its chunks."""
    choices: dict[int, dict[str, Any]] = defaultdict(lambda: {"text": "", "finish_reason": None, "logprobs": None})
    chunks = []
    async for chunk in stream:
        chunks.append(chunk.to_dict())
        for choice in chunks[-1]["choices"]:
            whole = choices[choice["index"]]
            assert whole["finish_reason"] is None
            whole["text"] += choice["text"]
            whole |= {name: choice[name] for name in ("finish_reason", "stop_reason") if name in choice}
            for name, values in (choice["logprobs"] or {}).items():
                whole["logprobs"] = whole["logprobs"] or defaultdict(list)
                whole["logprobs"][name] += values
    return dict(choices), chunks


def check_offsets(choice: dict[str, Any]) -> None:
    """The tokens are the text, each at its offset."""
    listed = choice["logprobs"]
    assert "".join(listed["tokens"]) == choice["text"]
    for offset, token in zip(listed["text_offset"], listed["tokens"], strict=True):
        assert choice["text"][offset:].startswith(token)
    assert len({len(values) for values in listed.values()}) == 1


BODIES: dict[str, dict[str, Any]] = {
    "text": {"prompt": "hello", "max_tokens": 2},
    "ids": {"prompt": [104, 105], "echo": True},
    "prompts": {"prompt": ["one", "two"], "n": 2, "echo": True},
    "logprobs": {"prompt": "hello", "logprobs": 2},
    "echo": {"prompt": ["héllo", "two"], "logprobs": 1, "echo": True, "n": 2},
    "stop": {"prompt": "hello", "stop": ["n"], "max_tokens": 9},
    "score": {"prompt": "hello", "logprobs": 0, "echo": True, "max_tokens": 0},
    "repeat": {"prompt": "hello", "echo": True, "max_tokens": 0},
    "lm-eval": {"prompt": [[104, 105, 106]], "logprobs": 1, "echo": True, "max_tokens": 1},
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_stream_adds_up_to_the_whole_answer(body: dict[str, Any]) -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = score_and_say
            whole = (await client.completions.create(model="stub", **body)).to_dict()
            stream = await client.completions.create(
                model="stub", stream=True, stream_options={"include_usage": True}, **body
            )
            choices, chunks = await fold(stream)
            assert {choice["index"]: choice for choice in whole["choices"]} == {
                index: {"index": index, **choice} for index, choice in choices.items()
            }
            assert [choice["index"] for choice in whole["choices"]] == sorted(choices)
            assert chunks[-1]["usage"] == whole["usage"]
            assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks[:-1])
            assert {chunk["object"] for chunk in chunks} == {whole["object"]} == {"text_completion"}
            assert whole["id"].startswith("cmpl-")

    run(test)


async def create(worker: Worker, **body: Any) -> dict[str, Any]:
    worker.upstream.behave = score_and_say
    async with worker.client() as client:
        answer: openai.types.Completion = await client.completions.create(model="stub", **body)
        return answer.to_dict()


def test_choices_are_numbered_by_prompt_and_each_prompt_counts_once() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = await create(worker, prompt=["a", "bcd"], n=2, echo=True)
            assert [choice["text"] for choice in answer["choices"]] == ["a end", "a end", "bcd end", "bcd end"]
            usage = answer["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (4, 16, 20)
            seeds = [request.sampling.seed for request in worker.upstream.requests()]
            assert seeds[0] != seeds[1]
            await worker.idle()

    run(test)


def test_an_echoed_prompt_is_scored_but_for_its_first_token() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = await create(worker, prompt="abc", logprobs=1, echo=True)
            (choice,) = answer["choices"]
            check_offsets(choice)
            listed = choice["logprobs"]
            assert choice["text"] == "abc end"
            assert listed["token_logprobs"] == [None, -1, -2, *[-0.5] * 4]
            assert listed["text_offset"] == list(range(7))
            assert listed["top_logprobs"][:3] == [None, {"b": -1, "c": -0.25}, {"c": -2, "d": -0.25}]

    run(test)


def test_offsets_without_echo_begin_at_the_answer_and_count_characters() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = say("hé!")
            answer = await client.completions.create(model="stub", prompt="x", logprobs=0)
            listed = answer.choices[0].logprobs
            assert listed is not None
            assert listed.tokens == ["h", "bytes:\\xc3", "bytes:\\xa9", "!"]
            assert listed.text_offset == [0, 1, 1, 2]
            assert listed.top_logprobs is not None
            assert listed.top_logprobs[1] == {"bytes:\\xc3": -0.5}

    run(test)


def test_a_scored_prompt_needs_no_answer() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = await create(worker, prompt=[97, 98], logprobs=1, echo=True, max_tokens=0)
            (choice,) = answer["choices"]
            assert (choice["text"], choice["finish_reason"]) == ("ab", "length")
            assert choice["logprobs"]["token_logprobs"] == [None, -1]
            assert answer["usage"]["completion_tokens"] == 0
            assert [request.sampling.max_tokens for request in worker.upstream.requests()] == [0]

    run(test)


def test_without_max_tokens_sixteen_or_what_the_context_leaves() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            room = worker.context.deployment.max_model_len
            for prompt in ("x", "x" * (room - 3)):
                await create(worker, prompt=prompt)
            assert [request.sampling.max_tokens for request in worker.upstream.requests()] == [16, 3]
            with pytest.raises(openai.BadRequestError, match="do not fit the context"):
                await create(worker, prompt="x" * (room - 3), max_tokens=4)

    run(test)


def test_errors_have_their_status_before_the_first_chunk_and_are_events_after_it() -> None:
    async def test() -> None:
        async def fail(upstream: Upstream, request: GenerateRequest) -> None:
            if request.sampling.prompt_logprobs is not None:
                upstream.reply(request, prompt_logprobs=pack([(98, -1.0), (NO_TOKEN, 0.0)]))
                await asyncio.sleep(0.05)
            upstream.reply(request, finish="error", message="not finite")

        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = fail
            with pytest.raises(openai.InternalServerError, match="not finite"):
                await client.completions.create(model="stub", prompt="ab", stream=True)
            stream = await client.completions.create(model="stub", prompt="ab", stream=True, echo=True, logprobs=1)
            with pytest.raises(openai.APIError, match="not finite"):
                await fold(stream)
            await worker.idle()

    run(test)


def test_a_stop_string_ends_a_choice_and_is_named() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = await create(worker, prompt="x", stop=["n"], max_tokens=9)
            (choice,) = answer["choices"]
            assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (" e", "stop", "n")

    run(test)


def test_a_bad_field_is_named() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.completions.create(model="stub", prompt="ab", suffix="c")
            assert caught.value.param == "suffix"
            assert json.loads(caught.value.response.content)["error"]["type"] == "invalid_request_error"

    run(test)


def test_vllms_fields_show_the_tokens() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            shown = {"extra_body": {"return_token_ids": True, "return_tokens_as_token_ids": True}}
            body: dict[str, Any] = {"prompt": ["ab", "c"], "n": 2, "logprobs": 1, "echo": True}
            answer = await create(worker, **body, **shown)
            assert [choice["prompt_token_ids"] for choice in answer["choices"]] == [[97, 98]] * 2 + [[99]] * 2
            for choice in answer["choices"]:
                assert bytes(choice["token_ids"]) == b" end"
                ids = [*choice["prompt_token_ids"], *choice["token_ids"]]
                assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in ids]
            stream = await client.completions.create(model="stub", stream=True, **body, **shown)
            seen: dict[int, list[int]] = defaultdict(list)
            prompts: dict[int, list[int]] = {}
            async for chunk in stream:
                for choice in chunk.to_dict()["choices"]:
                    seen[choice["index"]] += choice["token_ids"]
                    if "prompt_token_ids" in choice:
                        assert prompts.setdefault(choice["index"], choice["prompt_token_ids"])
            assert {bytes(ids) for ids in seen.values()} == {b" end"}
            assert prompts == {0: [97, 98], 1: [97, 98], 2: [99], 3: [99]}

    run(test)


@pytest.mark.parametrize("echo", [{}, {"echo": True}, {"echo": True, "logprobs": 1}, {"max_tokens": 0}])
def test_a_prompt_is_scored_in_vllms_form(echo: dict[str, Any]) -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer = await create(worker, prompt=["abc", "d"], n=2, extra_body={"prompt_logprobs": 1}, **echo)
            first, second, third, fourth = answer["choices"]
            scored = {"98": {"logprob": -1, "rank": None, "decoded_token": "b"}}
            assert first["prompt_logprobs"][:2] == [None, scored | {"99": second_best("c")}]
            assert (len(first["prompt_logprobs"]), third["prompt_logprobs"]) == (3, [None])
            assert second["prompt_logprobs"] is None
            assert fourth["prompt_logprobs"] is None
            assert (first["logprobs"] is None) == ("logprobs" not in echo)
            assert first["text"] == ("abc" if "echo" in echo else "") + ("" if "max_tokens" in echo else " end")

    run(test)


def second_best(token: str) -> dict[str, Any]:
    return {"logprob": -0.25, "rank": 1, "decoded_token": token}
