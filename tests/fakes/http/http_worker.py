"""A complete HTTP worker in the test's own event loop: the real app and server, stub services, a fake engine."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import openai
import uvloop

from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process
from mmserve.httpserver.context import WorkerContext, open_worker
from mmserve.httpserver.mm_cache.alloc_path import AllocPath, AllocPaths, MediaSource
from mmserve.httpserver.mm_cache.traffic_split import TrafficSplit
from mmserve.httpserver.output.vocabulary import Vocabulary
from mmserve.httpserver.prompt.builder import PromptBuilder
from mmserve.httpserver.server import serve
from mmserve.httpserver.services import RequestServices, answer_format
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.retry_after import Clock
from tests.fakes.http.http_services import StubLeases, StubMedia, StubPrompts, byte_tokenizer, make_deployment
from tests.fakes.http.http_upstream import TIMEOUT_S, Upstream
from tests.fakes.models.chat_models import deployment_of

T = TypeVar("T")
POST_CHAT = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
"""The start of a request's head on a raw connection. Framing, another line end and the body follow."""


@dataclass
class Worker:
    """A serving worker."""

    port: int
    context: WorkerContext
    leases: StubLeases
    """Leases of v2, which every request uses unless the traffic split is changed."""
    v1_leases: StubLeases
    upstream: Upstream
    serving: asyncio.Task[None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, api_key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=TIMEOUT_S)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for state that has no event, by polling."""
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - plain state of objects under test
                await asyncio.sleep(0.002)

    async def idle(self) -> None:
        """Wait until all requests have ended, nobody reads their answers any more, and they hold no memory."""
        await self.until(lambda: not len(self.context.request_tasks) and not self.context.admission.in_flight)
        await self.until(lambda: not self.context.body_memory.used_nbytes)
        assert self.context.fetch_memory.used_nbytes == 0


@asynccontextmanager
async def http_worker(
    *,
    ready: bool = True,
    vision: bool = True,
    media: MediaSource | None = None,
    now: Clock = time.monotonic,
    template: str | None = None,
    checkpoint: Path | None = None,
    aliases: frozenset[str] = frozenset(),
    **config: object,
) -> AsyncIterator[Worker]:
    """A worker that is ended by SIGTERM, as the supervisor does. ``media`` replaces the stub reader.

    ``template``: source of the chat template, for what the worker finds out from it. The prompts are still stubs.
    ``checkpoint``: a folder of tests.fakes.models.chat_models, whose tokenizer and template then make the prompts.
    ``aliases``: further names of the model. ``now``: the clock that Retry-After is estimated by."""
    with tempfile.TemporaryDirectory(prefix="test-mmserve-") as run_dir:
        if checkpoint is None:
            deployment = make_deployment(run_dir, vision=vision, **config)
        else:
            deployment = deployment_of(checkpoint, max_model_len=32768, run_dir=run_dir, **config)
        if template is not None:
            deployment = _with_template(deployment, Path(run_dir), template)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        started = asyncio.Event()
        process = Process(deployment, "httpserver", 0, ready=lambda details: started.set(), listen_fd=listener.detach())
        metrics = MetricsClient(process.endpoints, process.name)
        v1, leases = StubLeases(), StubLeases()
        share = TrafficSplit(process.endpoints.alloc_share, 1.0)
        media = media or StubMedia()
        alloc_paths = AllocPaths(AllocPath(media, v1), AllocPath(media, leases), share)
        prompts = StubPrompts() if checkpoint is None else PromptBuilder(deployment)
        vocabulary = Vocabulary(byte_tokenizer() if isinstance(prompts, StubPrompts) else prompts.tokenizer)
        answers = answer_format(deployment, vocabulary)
        services = RequestServices(alloc_paths, prompts, vocabulary, answers)
        async with (
            Upstream(process.endpoints) as upstream,
            open_worker(process, services, metrics, now) as context,
        ):
            model = dataclasses.replace(context.model, aliases=context.model.aliases | aliases)
            context = dataclasses.replace(context, model=model)
            serving = asyncio.create_task(serve(process, context))
            await started.wait()
            worker = Worker(port, context, leases, v1, upstream, serving)
            if ready:
                upstream.say_phase()
                await worker.until(lambda: context.admission.ready)
            try:
                yield worker
            finally:
                await _end(serving)
        share.close()
        metrics.close()


async def status_line(worker: Worker, data: bytes) -> bytes:
    """The status line of the answer to ``data`` on a new connection, before any more are sent. Then hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    try:
        writer.write(data)
        return await reader.readline()
    finally:
        writer.transport.abort()


async def _end(serving: asyncio.Task[None]) -> None:
    if not serving.done():
        os.kill(os.getpid(), signal.SIGTERM)
    await serving


def run(test: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on uvloop, as the worker does."""

    async def limited() -> T:
        async with asyncio.timeout(60):
            return await test()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(limited())


def _with_template(deployment: Deployment, directory: Path, template: str) -> Deployment:
    (directory / "chat_template.jinja").write_text(template)
    return msgspec.structs.replace(deployment, model=msgspec.structs.replace(deployment.model, path=str(directory)))
