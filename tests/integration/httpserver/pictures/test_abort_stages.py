"""Disconnects at every stage of a request with an image, with one choice or four, cached or not: no lease remains.

The real request path and cache server, with a fake engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import pytest

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.httpserver.call import MediaItem, MediaRef
from mmserve.httpserver.mm_cache import leases as leases_module
from mmserve.httpserver.mm_cache import stored_bytes
from mmserve.httpserver.mm_cache.alloc_path import AllocPath
from mmserve.httpserver.mm_cache.leases import MediaLeases
from mmserve.ipc.arena import Arena
from mmserve.messages.cache import AllocItem
from mmserve.messages.media import Handle, Processing
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_services import IMAGE_TOKENS, StubMedia
from tests.fakes.http.http_upstream import Upstream, say_then_hold
from tests.fakes.http.http_worker import POST_CHAT, Worker, http_worker, run
from tests.fakes.pictures.cache import serving_cache
from tests.fakes.processes.samples import Samples

ARENA_NBYTES = 1 << 16
CONTENT = b"data:cat".ljust(2000, b".")
MESSAGES = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": CONTENT.decode()}}]}]


class _GatedMedia(StubMedia):
    def __init__(self) -> None:
        self.reading, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def read(self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing) -> list[MediaItem]:
        self.reading.set()
        await self.go_on.wait()
        return await super().read(refs, cache_salt, processing)


@dataclass
class Scene:
    """A worker, the cache server's table, and another process of the same server."""

    worker: Worker
    media: _GatedMedia
    table: SharedMediaTable
    other: MediaCacheClient
    arena: Arena

    @property
    def image(self) -> AllocItem:
        row_nbytes = self.worker.context.deployment.embed_row_nbytes
        return AllocItem(CONTENT, IMAGE_TOKENS, len(CONTENT), IMAGE_TOKENS * row_nbytes)

    @property
    def num_leases(self) -> int:
        """Leases of the worker."""
        held = self.table._table._leased
        return sum(len(items) for lease, items in held.items() if lease.owner.startswith("httpserver"))

    def encode(self) -> None:
        (record,) = self.other.alloc("before", [self.image], wait_s=0)
        assert record.data is not None
        self.arena.write(record.data, CONTENT)
        self.other.set_items_data("before", [record.item_id])
        assert self.other.set_items_embed([record.item_id], [True]) == ("ready",)
        self.other.release("before")


@contextlib.asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with http_worker() as worker:
        deployment, endpoints = worker.context.deployment, worker.context.endpoints
        arena = Arena.create(ARENA_NBYTES)
        with serving_cache(endpoints, arena) as table:
            leases = MediaLeases(deployment, arena, endpoints, "httpserver-0", Samples(), "v2")  # type: ignore[arg-type]
            media, other = _GatedMedia(), connect(endpoints, "other", batched=True)
            worker.context.alloc_paths._v2 = AllocPath(media, leases)
            yield Scene(worker, media, table, other, arena)
            # A client has its whole answer before the request's lease is released. Close the leases after that, as the
            # worker does: otherwise a busy machine may report the lease as leaked.
            await worker.idle()
            await leases.aclose()
            other.close()
        arena.close()


Stage = Callable[[Scene], AbstractAsyncContextManager[Callable[[], bool]]]
"""Yields a condition that holds once a request has reached the stage. On exit the request may continue."""


@contextlib.asynccontextmanager
async def reading(scene: Scene) -> AsyncIterator[Callable[[], bool]]:
    scene.media.go_on.clear()
    yield scene.media.reading.is_set
    scene.media.go_on.set()


@contextlib.asynccontextmanager
async def waiting_for_space(scene: Scene) -> AsyncIterator[Callable[[], bool]]:
    filler = AllocItem(b"filler" * 3, 1, ARENA_NBYTES - 2048, 0)
    scene.other.alloc("filler", [filler], wait_s=0)
    yield lambda: scene.table.snapshot().num_waiting == 1
    await scene.worker.until(lambda: scene.table.snapshot().num_waiting == 0)
    scene.other.release("filler")


@contextlib.asynccontextmanager
async def writing(scene: Scene) -> AsyncIterator[Callable[[], bool]]:
    started, go_on = threading.Event(), threading.Event()

    def write(arena: Arena, handle: Handle, content: bytes) -> None:
        started.set()
        assert go_on.wait(30)
        stored_bytes.write(arena, handle, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases_module, "write", write)
        yield started.is_set
        go_on.set()
        await scene.worker.idle()


@contextlib.asynccontextmanager
async def waiting_for_anothers_bytes(scene: Scene) -> AsyncIterator[Callable[[], bool]]:
    scene.other.alloc("writer", [scene.image], wait_s=0)
    yield lambda: scene.num_leases == 1
    await scene.worker.until(lambda: scene.num_leases == 0)
    scene.other.release("writer")


@contextlib.asynccontextmanager
async def sent_on(scene: Scene) -> AsyncIterator[Callable[[], bool]]:
    async def silent(upstream: Upstream, request: GenerateRequest) -> None:
        return None

    scene.worker.upstream.behave = silent
    yield lambda: bool(scene.worker.upstream.requests())


@contextlib.asynccontextmanager
async def first_token(scene: Scene) -> AsyncIterator[Callable[[], bool]]:
    scene.worker.upstream.behave = say_then_hold("s")
    yield lambda: bool(scene.worker.upstream.requests())


@contextlib.asynccontextmanager
async def decoding(scene: Scene) -> AsyncIterator[Callable[[], bool]]:
    scene.worker.upstream.behave = say_then_hold("so far so good")
    yield lambda: bool(scene.worker.upstream.requests())


@contextlib.asynccontextmanager
async def one_choice_ended(scene: Scene) -> AsyncIterator[Callable[[], bool]]:
    async def behave(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, b"said", finish="stop" if len(upstream.requests()) == 1 else None)

    scene.worker.upstream.behave = behave
    yield lambda: bool(scene.worker.upstream.requests())


NOT_CACHED = [reading, waiting_for_space, writing, waiting_for_anothers_bytes]
STREAMING = [first_token, decoding, one_choice_ended]
ANYWAY = [sent_on, *STREAMING]
CASES = [(stage, False) for stage in NOT_CACHED + ANYWAY] + [(stage, True) for stage in [reading, *ANYWAY]]


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize(("stage", "cached"), CASES, ids=[f"{s.__name__}-{'hit' if c else 'miss'}" for s, c in CASES])
def test_a_disconnect_at_any_stage_releases_all_leases(stage: Stage, cached: bool, n: int) -> None:
    async def test() -> None:
        async with scene() as here:
            if cached:
                here.encode()
            async with stage(here) as is_reached:
                reader, writer = await _ask(here.worker.port, n)
                await here.worker.until(is_reached)
                if stage in STREAMING:
                    await reader.readuntil(b"data: ")
                writer.close()
            await here.worker.until(lambda: here.num_leases == 0)
            await here.worker.idle()
            assert here.num_leases == 0
            whole = AllocItem(b"whole" * 4, 1, ARENA_NBYTES - 2048, 0)
            assert here.other.alloc("whole", [whole], wait_s=0)[0].state == "write", (
                "the whole arena can be leased again"
            )

    run(test)


async def _ask(port: int, n: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "stub", "messages": MESSAGES, "stream": True, "n": n}).encode()
    writer.write(POST_CHAT + b"content-length: %d\r\n\r\n" % len(body) + body)
    await writer.drain()
    return reader, writer
