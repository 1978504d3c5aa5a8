"""vLLM's extensions through an HTTP worker: what the engine is asked for, and what the answers say."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from mmserve.messages.logprobs import NO_TOKEN
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_services import EOS, IMAGE_TOKENS
from tests.fakes.http.http_upstream import Behaviour, Upstream, likely, say
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.integration.httpserver.protocols.test_chat import HELLO

HELLO_PARTS = [{"type": "text", "text": "hi"}]


async def ask(worker: Worker, **fields: Any) -> dict[str, Any]:
    """The answer as an object."""
    async with worker.client() as client:
        answer = await client.chat.completions.create(model="stub", messages=HELLO, extra_body=fields)
        return answer.model_dump(exclude_unset=True)


def test_the_engine_gets_bad_words_as_tokens_with_and_without_a_space() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            await ask(worker, bad_words=["no", "x" * 40], n=2, priority=7)
            (first, second) = worker.upstream.requests()
            expected = (tuple(b"no"), tuple(b" no"), (120,) * 40, (32, *(120,) * 40))
            assert first.sampling.bad_words == second.sampling.bad_words == expected
            assert (first.priority, second.priority) == (7, 7)
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(worker, bad_words=["x" * 200])
            assert refused.value.param == "bad_words[0]"
            assert len(worker.upstream.requests()) == 2

    run(test)


def test_many_bad_words_are_tokenized_in_a_thread() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            await ask(worker, bad_words=[f"{number:02}{'x' * 28}" for number in range(60)])
            (request,) = worker.upstream.requests()
            assert len(request.sampling.bad_words) == 120

    run(test)


@pytest.mark.parametrize(
    ("text", "fields", "reason"),
    [
        ("one two", {"stop": ["tw"]}, "tw"),
        ("one two", {"stop_token_ids": [ord("o")]}, ord("o")),
        ("one two", {}, None),
    ],
)
def test_a_choice_names_what_stopped_it(text: str, fields: dict[str, Any], reason: str | int | None) -> None:
    async def test() -> None:
        async with http_worker() as worker:
            worker.upstream.behave = say(text)
            choice = (await ask(worker, **fields))["choices"][0]
            assert choice["finish_reason"] == "stop"
            assert choice.get("stop_reason") == reason
            async with worker.client() as client:
                stream = await client.chat.completions.create(
                    model="stub", messages=HELLO, stream=True, extra_body=fields
                )
                reasons = [getattr(chunk.choices[0], "stop_reason", None) async for chunk in stream]
            assert reasons == [None] * (len(reasons) - 1) + [reason]

    run(test)


def test_the_log_probabilities_of_the_prompt_have_ranks_and_texts() -> None:
    async def score(upstream: Upstream, request: GenerateRequest) -> None:
        rows = likely(105, 1) + likely(NO_TOKEN, 0) * 2
        if request.sampling.prompt_logprobs is not None:
            upstream.reply(request, prompt_logprobs=rows)
        upstream.reply(request, [EOS], finish="stop")

    async def test() -> None:
        async with http_worker() as worker:
            worker.upstream.behave = score
            answer = await ask(worker, prompt_logprobs=1, n=2)
            first, token, image = answer["prompt_logprobs"]
            assert (first, image) == (None, None)
            assert token == {"105": {"logprob": -0.5, "rank": 1, "decoded_token": "i"}}
            assert "prompt_logprobs" not in await ask(worker)

    run(test)


def test_the_answer_repeats_the_clients_name_for_the_request() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            answer, other = await ask(worker, request_id="mine"), await ask(worker, request_id="mine")
            assert answer["id"] == other["id"] == "chatcmpl-mine"
            first, second = worker.upstream.requests()
            assert first.id != second.id

    run(test)


PICTURE = [
    {"role": "user", "content": [*HELLO_PARTS, {"type": "image_url", "image_url": {"url": "data:image/png;,x"}}]}
]


def test_token_ids_of_prompt_and_answer_whole_and_streamed() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            worker.upstream.behave = say("abc")
            answer = await ask(worker, messages=PICTURE, return_token_ids=True, n=2)
            prompt_ids = [*b"hi", *[EOS] * IMAGE_TOKENS]
            assert answer["prompt_token_ids"] == prompt_ids
            assert [choice["token_ids"] for choice in answer["choices"]] == [list(b"abc")] * 2
            plain = await ask(worker)
            assert "prompt_token_ids" not in plain
            assert "token_ids" not in plain["choices"][0]
            async with worker.client() as client:
                fields = {"model": "stub", "messages": PICTURE, "return_token_ids": True}
                stream = await client.chat.completions.create(
                    model="stub", messages=HELLO, stream=True, extra_body=fields
                )
                chunks = [chunk.model_dump(exclude_unset=True) async for chunk in stream]
            assert chunks[0]["prompt_token_ids"] == prompt_ids
            streamed = [id for chunk in chunks for id in chunk["choices"][0].get("token_ids", [])]
            assert streamed == list(b"abc")

    run(test)


def test_log_probabilities_can_name_tokens_by_their_ids() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            worker.upstream.behave = say("a")
            fields = {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True}
            (entry,) = (await ask(worker, **fields))["choices"][0]["logprobs"]["content"]
            assert (entry["token"], entry["bytes"]) == ("token_id:97", [97])
            assert [one["token"] for one in entry["top_logprobs"]] == ["token_id:97", "token_id:98"]

    run(test)


def test_a_request_that_bans_every_token_is_refused_before_the_engine_is_asked() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            with pytest.raises(openai.BadRequestError) as refused:
                await ask(worker, allowed_token_ids=[ord("a"), EOS], bad_words=["a"], min_tokens=1)
            assert (refused.value.param, refused.value.code) == ("allowed_token_ids", "no_token_allowed")
            assert not worker.upstream.requests()
            await worker.idle()

    run(test)


def test_an_answer_that_may_not_go_on_ends_with_the_clients_error() -> None:
    def fails_after(text: str) -> Behaviour:
        async def behave(upstream: Upstream, request: GenerateRequest) -> None:
            if text:
                upstream.reply(request, text.encode())
            upstream.reply(request, finish="no_token_allowed", message="no token is allowed")

        return behave

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            bans = {"allowed_token_ids": [ord("a"), ord("b")], "bad_words": ["ab", "aa"]}
            worker.upstream.behave = fails_after("a")
            with pytest.raises(openai.BadRequestError, match="allowed_token_ids and bad_words together") as refused:
                await ask(worker, **bans)
            assert refused.value.code == "no_token_allowed"
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True, extra_body=bans)
            with pytest.raises(openai.APIError) as event:
                async for _ in stream:
                    pass
            assert (event.value.code, event.value.param) == ("no_token_allowed", "allowed_token_ids")
            worker.upstream.behave = fails_after("")
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="stub", messages=HELLO, stream=True, extra_body=bans)
            await worker.idle()

    run(test)
