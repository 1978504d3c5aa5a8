"""Image questions to the whole server: answers are right and belong to the request's own picture, with concurrent
clients, streaming, several choices and several pictures."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.e2e.stack import Stack, ask, ask_streamed
from training.sample import Sample, samples

CLIENTS = 64


@pytest.fixture(scope="module")
def questions() -> list[Sample]:
    """Colours and shapes. The packaged model answers them reliably, so mixed-up pictures give wrong answers."""
    return list(samples(CLIENTS, seed=424242, kinds=("colour", "shape")))


async def _all_at_once(stack: Stack, questions: Sequence[Sample]) -> tuple[list[str], list[str]]:
    client = stack.async_client()

    async def plain(sample: Sample) -> str:
        reply = await client.chat.completions.create(model="llava", messages=sample.messages, temperature=0)
        return reply.choices[0].message.content or ""

    async def streamed(sample: Sample) -> str:
        stream = await client.chat.completions.create(
            model="llava", messages=sample.messages, temperature=0, stream=True
        )
        return "".join([event.choices[0].delta.content or "" async for event in stream if event.choices])

    async with client:
        whole = await asyncio.gather(*(plain(sample) for sample in questions))
        joined = await asyncio.gather(*(streamed(sample) for sample in questions))
    return list(whole), list(joined)


def test_64_concurrent_clients_get_answers_about_their_own_pictures(stack: Stack, questions: list[Sample]) -> None:
    """Answers of concurrent requests, streamed or not, equal those of single requests. A guess is right 1 in 7."""
    whole, joined = asyncio.run(_all_at_once(stack, questions))
    with stack.client() as client:
        alone = [ask(client, sample.messages) for sample in questions]
    assert whole == alone
    assert joined == alone
    right = sum(answer.strip() == sample.answer for answer, sample in zip(whole, questions, strict=True))
    assert right >= 0.85 * len(questions)
    assert stack.eventually("mm_leases", 0) == 0
    assert stack.eventually("num_requests_running", 0) == 0


def test_one_picture_from_32_clients_is_encoded_once(stack: Stack) -> None:
    sample = next(samples(1, seed=777001, kinds=("colour",)))
    before = stack.metric("mm_images_encoded_total")
    answers, _ = asyncio.run(_all_at_once(stack, [sample] * 32))
    assert len(set(answers)) == 1
    assert stack.eventually("mm_images_encoded_total", before + 1) == before + 1


def test_a_request_with_two_pictures_is_answered(stack: Stack) -> None:
    for sample in samples(3, seed=55, kinds=("two",)):
        with stack.client() as client:
            reply = client.chat.completions.create(model="llava", messages=sample.messages, temperature=0)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens > 128
        assert reply.choices[0].finish_reason == "stop"


def test_n_choices_share_one_picture(stack: Stack) -> None:
    sample = next(samples(1, seed=777002, kinds=("colour",)))
    before = stack.metric("mm_images_encoded_total")
    with stack.client() as client:
        reply = client.chat.completions.create(model="llava", messages=sample.messages, temperature=0, n=4)
    assert len({choice.message.content for choice in reply.choices}) == 1
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert stack.eventually("mm_images_encoded_total", before + 1) == before + 1


def test_usage_is_the_same_with_and_without_streaming(stack: Stack) -> None:
    sample = next(samples(1, seed=777003, kinds=("shape",)))
    with stack.client() as client:
        whole = client.chat.completions.create(model="llava", messages=sample.messages, temperature=0).usage
        stream = client.chat.completions.create(
            model="llava",
            messages=sample.messages,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        last = list(stream)[-1].usage
    assert whole is not None
    assert last is not None
    assert (last.prompt_tokens, last.completion_tokens) == (whole.prompt_tokens, whole.completion_tokens)


def test_the_same_seed_gives_the_same_text(stack: Stack) -> None:
    messages = [{"role": "user", "content": "What can you do?"}]
    with stack.client() as client:
        texts = {
            client.chat.completions.create(
                model="llava",
                messages=messages,
                temperature=1.5,
                seed=11,
                max_tokens=24,
                extra_body={"ignore_eos": True},
            )
            .choices[0]
            .message.content
            for _ in range(3)
        }
    assert len(texts) == 1


def test_text_only_answers_end_before_stop_strings(stack: Stack) -> None:
    messages = [{"role": "user", "content": "What colour is the circle?"}]
    with stack.client() as client:
        text = ask(client, messages)
        assert text
        cut = text[len(text) // 2 :][:3]
        stopped = ask(client, messages, stop=[cut])
        assert stopped == text[: text.index(cut)]
        assert ask_streamed(client, messages, stop=[cut]) == stopped
