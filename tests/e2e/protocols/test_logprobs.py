"""Log-probabilities from the whole server: they match the text, do not depend on streaming, batches, ranks and
workers, and continue when the engine is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from openai.types.chat import ChatCompletionTokenLogprob

from tests.e2e.stack import Stack
from tests.fakes.pictures.cache import until
from training.sample import samples

ASKED = {"model": "llava", "logprobs": True, "top_logprobs": 5}
LONG = {"temperature": 0, "max_tokens": 300, "extra_body": {"ignore_eos": True}}

Entries = list[ChatCompletionTokenLogprob]


async def whole(stack: Stack, messages: Sequence[dict[str, object]], **options: object) -> Entries:
    async with stack.async_client() as client:
        reply = await client.chat.completions.create(messages=messages, **ASKED, **options)
    (choice,) = reply.choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    check(choice.logprobs.content, choice.message.content or "")
    return choice.logprobs.content


async def streamed(
    stack: Stack, messages: Sequence[dict[str, object]], started: asyncio.Event | None = None, **options: object
) -> Entries:
    entries, text = Entries(), ""
    async with stack.async_client() as client:
        async for event in await client.chat.completions.create(messages=messages, stream=True, **ASKED, **options):
            (choice,) = event.choices
            text += choice.delta.content or ""
            entries += choice.logprobs.content or () if choice.logprobs else ()
            if started and entries:
                started.set()
    check(entries, text)
    return entries


def check(entries: Entries, text: str) -> None:
    """The entries spell the text; each has the five most likely tokens in descending order."""
    assert entries
    assert bytes(byte for entry in entries for byte in entry.bytes or ()).decode() == text
    for entry in entries:
        likely = [one.logprob for one in entry.top_logprobs]
        assert len(likely) == 5
        assert likely == sorted(likely, reverse=True)
        assert entry.logprob <= likely[0] <= 0


def values(entries: Entries) -> list[float]:
    return [value for entry in entries for value in (entry.logprob, *(one.logprob for one in entry.top_logprobs))]


def test_logprobs_are_the_same_streamed_batched_and_alone(stack: Stack) -> None:
    questions = [sample.messages for sample in samples(8, seed=909909, kinds=("colour", "shape"))]

    async def all_at_once() -> list[Entries]:
        return await asyncio.gather(
            *(ask(stack, messages, temperature=0) for messages in questions for ask in (whole, streamed))
        )

    together = asyncio.run(all_at_once())
    for at, messages in enumerate(questions):
        alone = asyncio.run(whole(stack, messages, temperature=0))
        assert [entry.token for entry in alone] == [entry.top_logprobs[0].token for entry in alone]
        for among_others in together[2 * at : 2 * at + 2]:
            assert [entry.token for entry in among_others] == [entry.token for entry in alone]
            assert values(among_others) == pytest.approx(values(alone), abs=1e-4)


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["router", "model_backend"])
def test_a_killed_engine_neither_loses_nor_repeats_logprobs(restarting_stack: Stack, victim: str) -> None:
    messages = [{"role": "user", "content": "What can you do?"}]
    stack = restarting_stack
    resent = stack.metric("requests_resent_total")

    async def scenario() -> tuple[Entries, Entries]:
        expected = await streamed(stack, messages, **LONG)
        started = asyncio.Event()
        live = asyncio.create_task(streamed(stack, messages, started, **LONG))
        await started.wait()
        for process in stack.processes(f"mmserve: {victim}"):
            process.kill()
        return expected, await live

    expected, seen = asyncio.run(scenario())
    until(lambda: stack.metric("requests_resent_total") > resent)
    assert [entry.token for entry in seen] == [entry.token for entry in expected]
    assert values(seen) == pytest.approx(values(expected), abs=1e-4)
