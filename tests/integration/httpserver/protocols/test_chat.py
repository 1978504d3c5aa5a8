"""Chat completions through the OpenAI client: streamed, whole, several choices, stop strings, pictures, errors."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from mmserve.messages.request import GenerateRequest
from mmserve.messages.sampling import SamplingParams
from tests.fakes.http.http_upstream import Upstream, say
from tests.fakes.http.http_worker import http_worker, run

HELLO = [{"role": "user", "content": "hi"}]
PICTURE = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "what "},
            {"type": "image_url", "image_url": {"url": "data:one"}},
            {"type": "text", "text": "?"},
        ],
    }
]


async def _listen(stream: openai.AsyncStream[ChatCompletionChunk], said: list[str]) -> None:
    async for chunk in stream:
        said.append(chunk.choices[0].delta.content or "")


def test_a_whole_answer_counts_its_tokens() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = say("héllo")
            answer = await client.chat.completions.create(model="stub", messages=HELLO)
            assert answer.choices[0].message.content == "héllo"
            assert answer.choices[0].finish_reason == "stop"
            assert answer.usage is not None
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 6)
            assert answer.usage.prompt_tokens_details.cached_tokens == 3

    run(test)


def test_a_streamed_answer_equals_the_whole_one_and_usage_is_last_if_requested() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = say("grün 你好 🎉", group=2)
            stream = await client.chat.completions.create(
                model="stub", messages=HELLO, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in stream]
            assert chunks[0].choices[0].delta.role == "assistant"
            assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "grün 你好 🎉"
            assert chunks[-2].choices[0].finish_reason == "stop"
            assert chunks[-1].choices == []
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == len("grün 你好 🎉".encode())
            assert all(chunk.usage is None for chunk in chunks[:-1])

    run(test)


def test_without_include_usage_no_chunk_is_without_choices() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True)
            assert all([len(chunk.choices) == 1 async for chunk in stream])

    run(test)


def test_choices_share_one_lease_and_differ_in_seed() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            answer = await client.chat.completions.create(model="stub", messages=PICTURE, n=3, seed=7)
            assert [choice.message.content for choice in answer.choices] == ["hello"] * 3
            assert sorted(r.sampling.seed for r in worker.upstream.requests()) == [7, 8, 9]
            await worker.idle()
            assert len(worker.leases.held) == len(worker.leases.released) == 1
            assert answer.usage is not None
            assert answer.usage.completion_tokens == 15
            assert answer.usage.prompt_tokens_details.model_dump()["image_tokens"] == 4

    run(test)


def test_the_router_is_told_which_images_are_encoded() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            await client.chat.completions.create(model="stub", messages=PICTURE)
            worker.leases.state = "hit"
            await client.chat.completions.create(model="stub", messages=PICTURE)
            assert [[span.data is None for span in each.spans] for each in worker.upstream.requests()] == [
                [False],
                [True],
            ]

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_string_across_tokens_ends_the_text_and_aborts_the_engine(stream: bool) -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = say("one STOP two three", group=100, finish="length")
            answer = await client.chat.completions.create(
                model="stub", messages=HELLO, stop=["TOP", "zzz"], stream=stream
            )
            if stream:
                chunks = [chunk async for chunk in answer]
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                finish = chunks[-1].choices[0].finish_reason
            else:
                text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
                assert answer.usage.completion_tokens == len("one STOP")
            assert (text, finish) == ("one S", "stop")

    run(test)


def test_a_stop_string_aborts_a_sequence_that_would_go_on() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, b"a.b")

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = behave
            answer = await client.chat.completions.create(model="stub", messages=PICTURE, stop=".")
            assert answer.choices[0].message.content == "a"
            await worker.idle()
            assert [abort.id for abort in worker.upstream.aborts()] == [worker.upstream.requests()[0].id]
            assert worker.leases.released == worker.leases.held

    run(test)


def test_without_max_tokens_the_rest_of_the_context() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            await client.chat.completions.create(model="stub", messages=HELLO)
            await client.chat.completions.create(model="stub", messages=HELLO, max_tokens=3)
            await client.chat.completions.create(model="stub", messages=HELLO, max_completion_tokens=4, max_tokens=9)
            assert [r.sampling.max_tokens for r in worker.upstream.requests()] == [510, 3, 4]

    run(test)


def test_every_sampling_parameter_reaches_the_engine() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            await client.chat.completions.create(
                model="stub",
                messages=HELLO,
                temperature=0.5,
                top_p=0.9,
                presence_penalty=0.1,
                frequency_penalty=0.2,
                logit_bias={"5": -3},
                seed=42,
                max_tokens=9,
                logprobs=True,
                top_logprobs=3,
                extra_body={
                    "top_k": 5,
                    "min_p": 0.1,
                    "repetition_penalty": 1.1,
                    "ignore_eos": True,
                    "min_tokens": 2,
                    "tools": None,
                },
            )
            assert worker.upstream.requests()[0].sampling == SamplingParams(
                max_tokens=9,
                min_tokens=2,
                temperature=0.5,
                top_p=0.9,
                top_k=5,
                min_p=0.1,
                presence_penalty=0.1,
                frequency_penalty=0.2,
                repetition_penalty=1.1,
                logit_bias={5: -3.0},
                seed=42,
                stop_token_ids=(),
                logprobs=3,
            )

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_errors_before_the_first_token_have_a_real_status(stream: bool) -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, finish="media_error", message="not an image", media_index=0)

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = behave
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model="stub", messages=PICTURE, stream=stream)
            assert caught.value.code == "invalid_media"
            assert caught.value.param == "messages[0].content[1].image_url.url"
            await worker.idle()
            assert worker.leases.released == worker.leases.held

    run(test)


def test_a_failure_after_the_first_token_is_an_event_of_the_stream() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, b"so")
        upstream.reply(request, finish="error", message="numbers went wrong")

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = behave
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True)
            said: list[str] = []
            with pytest.raises(openai.APIError, match="numbers went wrong"):
                await _listen(stream, said)
            assert "".join(said) == "so"

    run(test)


def test_one_failing_choice_fails_the_request_and_aborts_the_others() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        if request.id.endswith("-1"):
            upstream.reply(request, finish="error", message="no")

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = behave
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="stub", messages=HELLO, n=2)
            await worker.idle()
            assert [abort.id[-2:] for abort in worker.upstream.aborts()] == ["-0"]

    run(test)


def test_many_clients_each_get_their_own_answer() -> None:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        prompt = bytes(memoryview(request.prompt_ids).cast("q").tolist())
        for byte in prompt[:-1]:
            upstream.reply(request, [byte])
            await asyncio.sleep(0)
        upstream.reply(request, prompt[-1:], finish="stop")

    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = behave

            async def ask(text: str) -> str | None:
                answer = await client.chat.completions.create(
                    model="stub", messages=[{"role": "user", "content": text}]
                )
                return answer.choices[0].message.content

            texts = [f"question {index}" for index in range(40)]
            assert await asyncio.gather(*map(ask, texts)) == texts

    run(test)
