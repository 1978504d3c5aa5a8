"""Image requests of the whole server that do not get a decode permit: 429 or 503, and no resources are kept."""

from __future__ import annotations

import asyncio

import openai

from mmserve.messages.cache import PermitRequest
from tests.e2e.stack import Stack, ask, running
from training.sample import Sample, samples

LIMITS = (
    *("--max-mm-preprocess-concurrency", "1"),
    *("--max-queued-mm-requests", "1"),
    *("--mm-queue-timeout", "5"),
)


async def _refusals(stack: Stack, asked: list[Sample]) -> dict[int, openai.APIStatusError]:
    """Send all requests at once. Returns the refusals by HTTP status."""
    async with stack.async_client() as client:
        answers = [client.chat.completions.create(model="llava", messages=each.messages, n=2) for each in asked]
        ends = await asyncio.gather(*answers, return_exceptions=True)
    return {end.status_code: end for end in ends if isinstance(end, openai.APIStatusError)}


def test_requests_beyond_the_queue_get_429_and_queue_timeouts_get_503() -> None:
    *asked, later = samples(3, seed=880404, kinds=("colour",))
    with running(*LIMITS) as stack, stack.cache_client() as cache:
        assert cache.acquire_permits([PermitRequest("held", 1, 0.0)], wait_s=20).granted == ("held",)
        refused = asyncio.run(_refusals(stack, asked))
        assert set(refused) == {429, 503}
        assert all(int(error.response.headers["retry-after"]) >= 1 for error in refused.values())
        assert "requests wait for their images already" in refused[429].message
        assert "did not get their turn within 5 s" in refused[503].message
        cache.release_permit("held")
        with stack.client() as client:
            assert ask(client, later.messages)
