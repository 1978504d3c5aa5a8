"""If the cache server or the visual server is killed, all its requests are answered about their own pictures, and no
lease remains."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

import openai
import psutil
import pytest

from tests.e2e.stack import Stack
from tests.fakes.pictures.cache import until
from training.sample import Sample, samples

CLIENTS = 12


@contextlib.contextmanager
def _suspended(processes: Sequence[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # the killed one
                process.resume()


async def _ask(client: openai.AsyncOpenAI, sample: Sample, n: int, **extra: str) -> list[str]:
    reply = await client.chat.completions.create(
        model="llava", messages=sample.messages, temperature=0, n=n, extra_body=extra
    )
    return [choice.message.content or "" for choice in reply.choices]


@pytest.mark.faults
@pytest.mark.parametrize(("victim", "seed"), [("cache_server", 770_101), ("visualserver", 770_202)])
def test_requests_in_flight_are_answered_about_their_pictures(restarting_stack: Stack, victim: str, seed: int) -> None:
    asked = [(sample, 1 + number % 2) for number, sample in enumerate(samples(CLIENTS, seed, kinds=("colour", "word")))]
    resent = restarting_stack.metric("requests_resent_total")

    async def scenario() -> tuple[list[list[str]], list[list[str]]]:
        async with restarting_stack.async_client() as client:
            with _suspended(restarting_stack.processes("mmserve: visualserver")):
                in_flight = [asyncio.create_task(_ask(client, *each)) for each in asked]
                leases = await asyncio.to_thread(restarting_stack.eventually, "mm_leases", CLIENTS, 40.0)
                assert leases == CLIENTS, "every picture is in the arena, and none is encoded"
                for process in restarting_stack.processes(f"mmserve: {victim}"):
                    process.kill()
            answers = await asyncio.gather(*in_flight)
            # The salt makes every picture a cache miss, so it is encoded again.
            return answers, [await _ask(client, *each, cache_salt="alone") for each in asked]

    answers, alone = asyncio.run(scenario())
    assert answers == alone
    assert len({each[0] for each in alone}) > CLIENTS / 3, "different pictures have different answers"
    until(lambda: restarting_stack.metric("requests_resent_total") > resent)
    assert restarting_stack.eventually("mm_leases", 0) == 0
