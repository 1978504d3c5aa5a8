"""Both paths of a worker over one real table, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mmserve.cache_server.run import new_slots
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.config.deployment import Deployment
from mmserve.httpserver.call import AllocVersion
from mmserve.httpserver.media.reader import MediaReader
from mmserve.httpserver.mm_cache.alloc_path import AllocPath
from mmserve.httpserver.mm_cache.leases import MediaLeases
from mmserve.ipc.arena import Arena
from mmserve.ipc.endpoints import Endpoints
from tests.fakes.cache_in_process import InProcessLink, in_process_client
from tests.fakes.samples import Samples

ALLOC_VERSIONS: tuple[AllocVersion, AllocVersion] = ("v1", "v2")


class BothAllocPaths:
    """``paths`` and ``links`` by alloc_version; ``samples`` of both. AllocPaths are closed by ``run``."""

    def __init__(self, deployment: Deployment, arena: Arena, patience_s: float = 10.0) -> None:
        self.arena = arena
        self.table = SharedMediaTable(new_slots(arena))
        self.samples = Samples()
        self.paths: dict[AllocVersion, AllocPath] = {}
        self.links: dict[AllocVersion, InProcessLink] = {}
        for alloc_version in ALLOC_VERSIONS:
            client, self.links[alloc_version] = in_process_client(self.table, alloc_version)
            samples: Any = self.samples
            reader = MediaReader(deployment, samples, alloc_version)
            leases = MediaLeases(
                deployment,
                arena,
                Endpoints("/nowhere"),
                "httpserver-0",
                samples,
                alloc_version,
                client=client,
                patience_s=patience_s,
            )
            self.paths[alloc_version] = AllocPath(reader, leases)

    def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        async def all_of_it() -> Any:
            try:
                return await scenario()
            finally:
                for path in self.paths.values():
                    await path.media.aclose()  # type: ignore[attr-defined]
                    await path.leases.aclose()  # type: ignore[attr-defined]

        return asyncio.run(all_of_it())

    def bytes_held(self, leased: Any) -> list[bytes]:
        """What stands in the arena for leased items whose bytes are there."""
        return [bytes(self.arena.readable(one.record.data)) for one in leased]

    def is_clean(self) -> bool:
        """No lease, no request that waits, nothing that is being written."""
        snapshot = self.table.snapshot()
        return snapshot.num_leases == snapshot.num_waiting == 0 and ("data", "writing") not in snapshot.usage

    def has_waited(self, alloc_version: AllocVersion) -> bool:
        """Does a request wait for space, or has one of this path begun to wait for bytes?"""
        calls = self.links[alloc_version].calls
        return self.table.snapshot().num_waiting > 0 or "get_items_data" in calls
