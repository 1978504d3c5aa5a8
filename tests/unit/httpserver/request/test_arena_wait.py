"""The engine is told how long the pictures of a request waited for room in the arena."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from mmserve.ipc.arena import Arena
from mmserve.messages.request import AbortRequest, GenerateRequest
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.alloc_paths import BothAllocPaths
from tests.unit.httpserver.request.test_nothing_is_kept import SECONDS, Engine, Tracker, World, full_arena


class _Seen(Engine):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[GenerateRequest] = []

    def send(self, message: GenerateRequest | AbortRequest) -> None:
        if isinstance(message, GenerateRequest):
            self.requests.append(message)
        super().send(message)


def test_the_wait_for_room_is_in_each_sequence(tmp_path: Path) -> None:
    arena = Arena.create(1 << 16)
    paths = BothAllocPaths(deployment_of(write_chat_model(tmp_path)), arena, timeout_s=SECONDS)

    async def scenario() -> None:
        engine = _Seen()
        world = World(paths, "v2", Tracker(), engine)
        async with full_arena(world):
            serving = world.start(stream=False)
            while not paths.table.snapshot().num_waiting:  # noqa: ASYNC110 - the table has no event for this
                await asyncio.sleep(0.001)
            waiting_s = time.monotonic()
            await asyncio.sleep(0.02)
            waited_s = time.monotonic() - waiting_s
        await serving
        assert [request.arena_s >= waited_s for request in engine.requests] == [True, True]
        await world.ended()

    paths.run(scenario)
    arena.close()
