"""Both lanes of a worker over one real table, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mmserve.cache_server.run import new_slots
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.config.deployment import Deployment
from mmserve.httpserver.media.reader import MediaReader
from mmserve.httpserver.mm_cache.alloc_path import AllocPath, Generation
from mmserve.httpserver.mm_cache.leases import MediaLeases
from mmserve.ipc.arena import Arena
from mmserve.ipc.endpoints import Endpoints
from tests.fakes.cache_in_process import InProcessLink, in_process_client
from tests.fakes.samples import Samples

GENERATIONS: tuple[Generation, Generation] = ("v1", "v2")


class BothLanes:
    """``lanes`` and ``links`` by generation; ``samples`` of both. AllocPaths are closed by ``run``."""

    def __init__(self, deployment: Deployment, arena: Arena, patience_s: float = 10.0) -> None:
        self.arena = arena
        self.table = SharedMediaTable(new_slots(arena))
        self.samples = Samples()
        self.lanes: dict[Generation, AllocPath] = {}
        self.links: dict[Generation, InProcessLink] = {}
        for generation in GENERATIONS:
            client, self.links[generation] = in_process_client(self.table, generation)
            samples: Any = self.samples
            reader = MediaReader(deployment, samples, generation)
            leases = MediaLeases(
                deployment,
                arena,
                Endpoints("/nowhere"),
                "httpserver-0",
                samples,
                generation,
                client=client,
                patience_s=patience_s,
            )
            self.lanes[generation] = AllocPath(reader, leases)

    def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        async def all_of_it() -> Any:
            try:
                return await scenario()
            finally:
                for lane in self.lanes.values():
                    await lane.media.aclose()  # type: ignore[attr-defined]
                    await lane.leases.aclose()  # type: ignore[attr-defined]

        return asyncio.run(all_of_it())

    def bytes_held(self, leased: Any) -> list[bytes]:
        """What stands in the arena for leased items whose bytes are there."""
        return [bytes(self.arena.readable(one.record.data)) for one in leased]

    def is_clean(self) -> bool:
        """No lease, no request that waits, nothing that is being written."""
        snapshot = self.table.snapshot()
        return snapshot.num_leases == snapshot.num_waiting == 0 and ("data", "writing") not in snapshot.usage

    def has_waited(self, generation: Generation) -> bool:
        """Does a request wait for space, or has one of this lane begun to wait for bytes?"""
        calls = self.links[generation].calls
        return self.table.snapshot().num_waiting > 0 or "get_items_data" in calls
