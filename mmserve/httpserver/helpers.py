"""The real media and prompt helpers of a worker: how each is made and closed. Knows no request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from mmserve.httpserver.detokenizer import Vocabulary
from mmserve.httpserver.front import Helpers
from mmserve.httpserver.media import MediaReader
from mmserve.httpserver.media_lease import MediaLeases
from mmserve.httpserver.prompt import Prompts
from mmserve.metrics.client import MetricsClient
from mmserve.process import Process


@asynccontextmanager
async def open_helpers(process: Process, metrics: MetricsClient) -> AsyncIterator[Helpers]:
    """The real helpers of this process."""
    deployment, arena = process.deployment, process.arena
    assert arena is not None, "an http worker inherits the arena"
    async with AsyncExitStack() as stack:
        arena.map_all()
        prompts = await asyncio.to_thread(Prompts, deployment)
        media = MediaReader(deployment, metrics)
        stack.push_async_callback(media.aclose)
        leases = MediaLeases(deployment, arena, process.endpoints, process.name, metrics)
        stack.push_async_callback(leases.aclose)
        yield Helpers(media, leases, prompts, Vocabulary(prompts.tokenizer))
