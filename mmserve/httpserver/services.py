"""The services that serve a request's images and prompt: makes them when the worker starts, closes them at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process
from mmserve.httpserver.call import AllocVersion
from mmserve.httpserver.media.reader import MediaReader
from mmserve.httpserver.mm_cache.alloc_path import AllocPath, AllocPaths
from mmserve.httpserver.mm_cache.leases import MediaLeases
from mmserve.httpserver.mm_cache.traffic_split import TrafficSplit
from mmserve.httpserver.output.answer_format import AnswerFormat
from mmserve.httpserver.output.vocabulary import Vocabulary
from mmserve.httpserver.prompt.builder import PromptBuilder
from mmserve.httpserver.prompt.template.chat_template import template_of
from mmserve.httpserver.request.path import PromptSource
from mmserve.monitoring.metrics.client import MetricsClient


@dataclass(frozen=True)
class RequestServices:
    """Services of the request path that tests replace."""

    alloc_paths: AllocPaths
    prompts: PromptSource
    vocabulary: Vocabulary
    answer_format: AnswerFormat


@asynccontextmanager
async def open_services(process: Process, metrics: MetricsClient) -> AsyncIterator[RequestServices]:
    """The services of this process, closed at the end of the context."""
    assert process.arena is not None, "an http worker inherits the arena"
    config = process.deployment.config
    if config.prefault:
        process.arena.map_all()
    prompts = await asyncio.to_thread(PromptBuilder, process.deployment)
    initial_fraction = config.concurrent_alloc_fraction if config.enable_concurrent_alloc else 0.0
    with closing(TrafficSplit(process.endpoints.alloc_share, initial_fraction)) as split:
        async with open_alloc_path("v1", process, metrics) as v1, open_alloc_path("v2", process, metrics) as v2:
            vocabulary = Vocabulary(prompts.tokenizer)
            yield RequestServices(
                AllocPaths(v1, v2, split), prompts, vocabulary, answer_format(process.deployment, vocabulary)
            )


def answer_format(deployment: Deployment, vocabulary: Vocabulary) -> AnswerFormat:
    """How the deployment's model writes its answers. Raises StartupError."""
    checkpoint, config = Path(deployment.model.path), deployment.config
    source = template_of(deployment.model) or ""
    return AnswerFormat.of_checkpoint(checkpoint, source, vocabulary, config.tool_call_parser, config.reasoning_parser)


@asynccontextmanager
async def open_alloc_path(version: AllocVersion, process: Process, metrics: MetricsClient) -> AsyncIterator[AllocPath]:
    """Reader and leases of one allocation path. Threads and connections start with the path's first request."""
    deployment, arena = process.deployment, process.arena
    assert arena is not None, "an http worker inherits the arena"
    async with AsyncExitStack() as stack:
        media = MediaReader(deployment, metrics, version)
        stack.push_async_callback(media.aclose)
        leases = MediaLeases(deployment, arena, process.endpoints, process.name, metrics, version)
        stack.push_async_callback(leases.aclose)
        yield AllocPath(media, leases)
