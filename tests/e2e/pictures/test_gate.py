"""The whole server with a limit of one decode permit, and with a pixel budget that large pictures exceed."""

from __future__ import annotations

import asyncio
import base64
import io
import math
from collections.abc import Iterator

import openai
import pytest
from PIL import Image

from mmserve.messages.cache import PermitRequest, PermitsReply
from tests.e2e.stack import Stack, running
from tests.fakes.pictures.cache import until
from training.sample import Sample, samples


@pytest.fixture(scope="module")
def gated() -> Iterator[Stack]:
    with running("--max-mm-preprocess-concurrency", "1", "--pixel-budget-mb", "8", "--visual-workers", "2") as stack:
        yield stack


async def _ask_all(stack: Stack, asked: list[Sample]) -> list[str]:
    async with stack.async_client() as client:

        async def ask(sample: Sample) -> str:
            reply = await client.chat.completions.create(model="llava", messages=sample.messages, temperature=0)
            return reply.choices[0].message.content or ""

        return list(await asyncio.gather(*(ask(sample) for sample in asked)))


def _big_picture() -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (1536, 1536), "red").save(buffer, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def test_concurrent_requests_get_the_same_answers_as_single_requests(gated: Stack) -> None:
    asked = list(samples(16, seed=880101, kinds=("colour", "shape", "word")))
    together = asyncio.run(_ask_all(gated, asked))
    assert together == [asyncio.run(_ask_all(gated, [sample]))[0] for sample in asked]
    assert gated.eventually("mm_decoding_peak", 1) == 1, "in both visual servers together"


def test_n_streamed_choices_decode_their_picture_once(gated: Stack) -> None:
    (sample,) = samples(1, seed=880202, kinds=("colour",))
    before = gated.metric("mm_images_encoded_total")
    with gated.client() as client:
        stream = client.chat.completions.create(
            model="llava", messages=sample.messages, temperature=0, n=4, stream=True
        )
        indices = {event.choices[0].index for event in stream if event.choices and event.choices[0].delta.content}
    assert indices == {0, 1, 2, 3}
    assert gated.eventually("mm_images_encoded_total", before + 1) == before + 1


def test_a_picture_beyond_the_pixel_budget_is_refused_with_the_limit(gated: Stack) -> None:
    content = [{"type": "image_url", "image_url": {"url": _big_picture()}}, {"type": "text", "text": "What is it?"}]
    with gated.client() as client, pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(model="llava", messages=[{"role": "user", "content": content}])
    assert caught.value.status_code == 413
    assert "8.0 MiB at once (--pixel-budget-mb)" in caught.value.message


@pytest.mark.faults
def test_permits_of_a_killed_visual_server_are_granted_to_others(gated: Stack) -> None:
    asked = list(samples(24, seed=880303, kinds=("colour", "background")))
    ours, after_all = PermitRequest("ours", 1, 0.0), PermitRequest("after all", 1, math.inf)
    with gated.cache_client() as cache:

        async def scenario() -> list[str]:
            assert cache.acquire_permits([ours], wait_s=20).granted == (ours.name,)
            answers = asyncio.create_task(_ask_all(gated, asked))
            await asyncio.to_thread(until, lambda: gated.metric("mm_decode_waiting") > 0)
            victims = gated.processes("mmserve: visualserver")
            for victim in victims:
                victim.suspend()
            cache.release_permit(ours.name)
            # The first request of the queue has the permit now; its visual server is suspended and does not release it.
            assert cache.acquire_permits([after_all], wait_s=0) == PermitsReply()
            for victim in victims:
                victim.kill()
            return await answers

        answers = asyncio.run(scenario())
    assert all(answers)
    assert gated.eventually("mm_decoding", 0) == 0
