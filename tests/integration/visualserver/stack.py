"""A visual server with a fake or real tower, a real cache server and the test as router, in one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.waiting.decode_permits import DecodePermits
from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.resolved.process import Process
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.channel import AsyncReceiver, Sender
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.cache import AllocItem
from mmserve.messages.media import MediaSpan
from mmserve.messages.request import AbortRequest, EncodeRequest, EngineInbound, ImagesEncoded, VisualInbound
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.pictures.resize import TorchResize
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.processors.registry import processor_for
from mmserve.visualserver.batches.encode import HOST, ComputeRows
from mmserve.visualserver.batches.towers import computing_rows
from mmserve.visualserver.run import _serve
from tests.fakes.pictures.cache import serving_cache
from tests.fakes.pictures.media import fake_process, model_spec, write_preprocessor

HIDDEN, TOKENS = 8, 4
TIMEOUT_S = 20.0
PIXELS_NBYTES = 1 << 20


class FakeTower:
    """Returns rows filled with the mean of the picture. Blocks while ``gate`` is cleared; records batch sizes."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.batches: list[int] = []
        self.threads: list[int] = []
        """Those that have begun, and then called it."""

    def begin(self) -> None:
        """The thread that calls the tower first makes the tower's device its own."""
        self.threads.append(threading.get_ident())

    def __call__(self, pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        self.threads.append(threading.get_ident())
        self.batches.append(len(pictures))
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S)
        return [picture.pixels.float().mean().expand(TOKENS, HIDDEN) for picture in pictures]


@dataclass
class Stack:
    """The server under test. The test plays the HTTP worker and the router."""

    process: Process
    tower: FakeTower
    arena: Arena
    client: MediaCacheClient
    visual: Sender[VisualInbound]
    router: AsyncReceiver[EngineInbound]
    server: asyncio.Task[None]
    cache: ExitStack
    table: SharedMediaTable
    sent: dict[str, EncodeRequest] = field(default_factory=dict)
    told: dict[str, list[int]] = field(default_factory=dict)
    """Request id -> item ids that the router was told, in order."""

    @property
    def num_tokens(self) -> int:
        vision = self.process.deployment.model.vision
        assert vision is not None
        return vision.num_rows

    def request(self, name: str, *pictures: bytes) -> EncodeRequest:
        """Allocate and write the pictures, as an HTTP worker does; then the router's request for them."""
        num_tokens, row_nbytes = self.num_tokens, self.process.deployment.embed_row_nbytes
        items = [AllocItem(picture[-40:], num_tokens, len(picture), num_tokens * row_nbytes) for picture in pictures]
        records = self.client.alloc(name, items, wait_s=5)
        for record, picture in zip(records, pictures, strict=True):
            if record.state == "write":
                assert record.data is not None
                self.arena.write(record.data, picture)
        self.client.set_items_data(name, [record.item_id for record in records if record.state == "write"])
        spans = tuple(
            MediaSpan(
                start=index * num_tokens,
                num_tokens=num_tokens,
                item_id=record.item_id,
                data=record.data,
                embed=record.embed,
                media_index=index,
                decoded_nbytes=PIXELS_NBYTES,
            )
            for index, record in enumerate(records)
        )
        self.sent[name] = EncodeRequest(id=name, reply_to=2, spans=spans, arrival_s=1.5)
        return self.sent[name]

    def send(self, name: str, *pictures: bytes) -> EncodeRequest:
        """``request``, then send it to the visual server."""
        request = self.request(name, *pictures)
        self.visual.send(request)
        return request

    async def abort(self, *names: str) -> None:
        """Send aborts, and wait until the visual server has handled them."""
        for name in names:
            self.visual.send(AbortRequest(id=name, reply_to=2))
        self.visual.send(EncodeRequest(id="barrier", reply_to=2, spans=(), arrival_s=0.0))
        async with asyncio.timeout(TIMEOUT_S):
            async for message in self.router:
                if message.id == "barrier":  # type: ignore[union-attr]
                    return

    async def received(self, count: int) -> dict[str, EncodeRequest | AbortRequest]:
        """The requests that the router was told the last images of, and the aborts, until there are ``count``."""
        found: dict[str, EncodeRequest | AbortRequest] = {}
        async with asyncio.timeout(TIMEOUT_S):
            async for message in self.router:
                if isinstance(message, ImagesEncoded):
                    self.told.setdefault(message.id, []).extend(message.item_ids)
                    asked = {span.item_id for span in self.sent[message.id].spans if span.data is not None}
                    missing = asked.difference(self.told[message.id])
                    assert bool(message.stage_times) == bool(asked and not missing)
                    if missing:
                        continue
                    found[message.id] = self.sent[message.id]
                elif isinstance(message, AbortRequest):
                    found[message.id] = message
                if len(found) == count:
                    return found
        raise AssertionError("unreachable")

    async def encoding(self) -> None:
        """Wait until the tower is computing."""
        assert await asyncio.to_thread(self.tower.entered.wait, TIMEOUT_S)
        self.tower.entered.clear()

    def rows(self, request: EncodeRequest, index: int = 0) -> torch.Tensor:
        data = bytearray(self.arena.readable(request.spans[index].embed))
        return torch.frombuffer(data, dtype=torch.float32).view(self.num_tokens, -1)


def _real_tower(process: Process, *, whole: bool = False) -> ComputeRows:
    deployment = process.deployment
    platform = platform_for(deployment.device, deployment.dtype, process.index, deployment.activation_dtype)
    processor = processor_for(deployment.model)
    assert processor is not None
    tower = load_tower(deployment.model, platform, process.progress)
    resize = TorchResize(platform.transfers()) if whole else None
    return computing_rows(tower, processor.form, platform, resize=resize)


@asynccontextmanager
async def _running(
    tmp_path: Path, model: ModelSpec | None, *, whole: bool = False, **config: object
) -> AsyncIterator[Stack]:
    """With the real tower of ``model`` if given, else a fake one. ``whole``: its device makes the views."""
    arena, tower = Arena.create(1 << 20), FakeTower()
    fake_model = model_spec(write_preprocessor(tmp_path), hidden_size=HIDDEN)
    process = fake_process("visualserver", tmp_path, arena, model or fake_model, **config)
    endpoints = Endpoints(tmp_path)
    batched = process.deployment.config.enable_concurrent_alloc
    with ExitStack() as stack:
        stack.callback(arena.close)
        cache = stack.enter_context(ExitStack())
        deployment = process.deployment
        permits = DecodePermits(deployment.config.max_mm_preprocess_concurrency, deployment.budgets.pixel_nbytes)
        table = cache.enter_context(serving_cache(endpoints, arena, permits))
        clients = [
            connect(endpoints, owner, batched=batched, reconnect_timeout_s=0.1) for owner in ("http-2", process.name)
        ]
        router: AsyncReceiver[EngineInbound] = AsyncReceiver(endpoints.router, EngineInbound)
        visual: Sender[VisualInbound] = Sender(endpoints.visual(0), VisualInbound)
        for socket in (router, visual, *clients):
            stack.callback(socket.close)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        served_tower = _real_tower(process, whole=whole) if model else tower
        server = asyncio.create_task(
            _serve(process, served_tower, clients[1], pool, device=HOST._replace(begin=tower.begin, takes_whole=whole))
        )
        try:
            yield Stack(process, tower, arena, clients[0], visual, router, server, cache, table)
        finally:
            tower.gate.set()
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)


def play(
    tmp_path: Path,
    scenario: Callable[[Stack], Awaitable[None]],
    model: ModelSpec | None = None,
    *,
    whole: bool = False,
    **config: object,
) -> None:
    """Run the scenario against a fresh stack."""

    async def main() -> None:
        async with _running(tmp_path, model, whole=whole, **config) as stack:
            await scenario(stack)

    asyncio.run(main())
