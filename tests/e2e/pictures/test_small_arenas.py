"""Servers with little or no arena: image requests are served one after another, or refused with a reason."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.e2e.stack import Stack, ask, running
from tests.fakes.pictures.cache import until
from training.sample import Sample, samples

CLIENTS = 24


def test_without_an_arena_text_is_answered_and_images_are_413() -> None:
    sample = next(samples(1, seed=5, kinds=("colour",)))
    with running("--mm-cache-gb", "0") as stack, stack.client() as client:
        assert ask(client, [{"role": "user", "content": "What can you do?"}])
        for _ in range(2):
            with pytest.raises(openai.APIStatusError) as refused:
                ask(client, sample.messages)
            assert refused.value.status_code == 413
        assert ask(client, [{"role": "user", "content": "What can you do?"}])


async def _ask_all(stack: Stack, questions: list[Sample]) -> list[str]:
    async with stack.async_client() as client:

        async def one(sample: Sample) -> str:
            reply = await client.chat.completions.create(model="llava", messages=sample.messages, temperature=0)
            return (reply.choices[0].message.content or "").strip()

        return list(await asyncio.gather(*(one(sample) for sample in questions)))


def test_an_arena_for_a_few_images_serves_many_clients_one_after_another() -> None:
    questions = list(samples(CLIENTS, seed=6, kinds=("colour",)))
    with running("--mm-cache-gb", "0.001") as stack:
        answers = asyncio.run(_ask_all(stack, questions))
        assert sum(a == sample.answer for a, sample in zip(answers, questions, strict=True)) >= 0.8 * CLIENTS
        until(lambda: stack.metric("mm_cache_evictions_total") > 0)
        others = [part for sample in questions[:16] for part in sample.messages[-1]["content"]]
        with stack.client() as client, pytest.raises(openai.APIStatusError) as refused:
            ask(client, [{"role": "user", "content": others}])
        assert refused.value.status_code == 413
        assert stack.eventually("mm_leases", 0) == 0


def test_a_picture_that_the_arena_has_lost_is_not_encoded_again_while_its_keys_and_values_are_cached() -> None:
    first, *others = samples(17, seed=7, kinds=("colour",))
    with running("--mm-cache-gb", "0.001") as stack, stack.client() as client:
        answer = ask(client, first.messages)
        for sample in others:
            ask(client, sample.messages)
        assert stack.eventually("mm_images_encoded_total", 17) == 17
        hits = stack.metric("mm_cache_hits_total")
        assert ask(client, first.messages) == answer
        assert stack.eventually("mm_images_not_encoded_total", 1) == 1
        assert (stack.metric("mm_images_encoded_total"), stack.metric("mm_cache_hits_total")) == (17, hits)
        assert stack.eventually("mm_leases", 0) == 0
