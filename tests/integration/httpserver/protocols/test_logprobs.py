"""Log-probabilities through the OpenAI client: whole, streamed, several choices, stop strings, an engine restart."""

from __future__ import annotations

from collections.abc import Iterable

from openai.types.chat import ChatCompletionTokenLogprob

from tests.fakes.http.http_upstream import say, say_then_hold
from tests.fakes.http.http_worker import http_worker, run
from tests.integration.httpserver.protocols.test_chat import HELLO


def text_of(entries: Iterable[ChatCompletionTokenLogprob]) -> str:
    return bytes(byte for entry in entries for byte in entry.bytes or ()).decode()


def test_log_probabilities_of_every_token_of_every_choice() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = say("grün", group=3)
            answer = await client.chat.completions.create(
                model="stub", messages=HELLO, logprobs=True, top_logprobs=2, n=2
            )
            for choice in answer.choices:
                assert choice.logprobs is not None
                assert choice.logprobs.refusal is None
                entries = choice.logprobs.content
                assert entries is not None
                assert text_of(entries) == "grün"
                assert [entry.token for entry in entries] == ["g", "r", "\ufffd", "\ufffd", "n"]
                assert [entry.logprob for entry in entries] == [-0.5] * 5
                first = [(likely.token, likely.logprob, likely.bytes) for likely in entries[0].top_logprobs]
                assert first == [("g", -0.5, [103]), ("h", -1.5, [104])]
            assert [request.sampling.logprobs for request in worker.upstream.requests()] == [2, 2]

    run(test)


def test_a_stream_sends_log_probabilities_with_their_text() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = say("é, you STOP now", finish="length")
            stream = await client.chat.completions.create(
                model="stub", messages=HELLO, logprobs=True, stop=["STOP"], stream=True
            )
            choices = [chunk.choices[0] async for chunk in stream]
            assert choices[0].logprobs is choices[-1].logprobs is None
            for choice in choices[1:-1]:
                assert choice.logprobs is not None
                entries = choice.logprobs.content
                assert entries is not None
                assert text_of(entries) == choice.delta.content
                assert [entry.top_logprobs for entry in entries] == [[]] * len(entries)
            assert "".join(choice.delta.content or "" for choice in choices) == "é, you "

    run(test)


def test_after_an_engine_restart_no_log_probability_is_lost_or_repeated() -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            upstream = worker.upstream
            upstream.behave = say_then_hold("first ")
            stream = await client.chat.completions.create(model="stub", messages=HELLO, stream=True, logprobs=True)
            upstream.lose_requests()
            upstream.behave = say("first and last")
            upstream.say_phase(engine_epoch=1)
            chunks = [chunk.choices[0] async for chunk in stream]
            assert "".join(choice.delta.content or "" for choice in chunks) == "first and last"
            tokens = [entry.token for choice in chunks if choice.logprobs for entry in choice.logprobs.content]
            assert "".join(tokens) == "first and last"
            assert len(tokens) == len("first and last")

    run(test)
