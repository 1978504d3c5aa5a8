"""Both allocation paths of a worker over one real MediaTable, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mmserve.cache_server.run import new_table
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver.call import AllocVersion
from mmserve.httpserver.media.reader import MediaReader
from mmserve.httpserver.mm_cache.alloc_path import AllocPath
from mmserve.httpserver.mm_cache.leases import MediaLeases
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from tests.fakes.pictures.cache_in_process import InProcessConnectionPool, in_process_client
from tests.fakes.processes.samples import Samples

ALLOC_VERSIONS: tuple[AllocVersion, AllocVersion] = ("v1", "v2")


class BothAllocPaths:
    """``paths`` and connection ``pools`` by version; ``samples`` of both. ``run`` closes the paths."""

    def __init__(self, deployment: Deployment, arena: Arena, timeout_s: float = 10.0) -> None:
        self.arena = arena
        self.table = SharedMediaTable(new_table(arena))
        self.samples = Samples()
        self.paths: dict[AllocVersion, AllocPath] = {}
        self.pools: dict[AllocVersion, InProcessConnectionPool] = {}
        for alloc_version in ALLOC_VERSIONS:
            client, self.pools[alloc_version] = in_process_client(self.table, alloc_version)
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
                timeout_s=timeout_s,
            )
            self.paths[alloc_version] = AllocPath(reader, leases)

    def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        async def run_and_close() -> Any:
            try:
                return await scenario()
            finally:
                for path in self.paths.values():
                    await path.media.aclose()  # type: ignore[attr-defined]
                    await path.leases.aclose()  # type: ignore[attr-defined]

        return asyncio.run(run_and_close())

    def bytes_held(self, leased: Any) -> list[bytes]:
        """The stored bytes of leased items that have data."""
        return [bytes(self.arena.readable(item.record.data)) for item in leased]

    def is_clean(self) -> bool:
        """True without any lease, waiting request or unfinished write."""
        snapshot = self.table.snapshot()
        return snapshot.num_leases == snapshot.num_waiting == 0 and ("data", "writing") not in snapshot.usage

    def has_waited(self, alloc_version: AllocVersion) -> bool:
        """True if a request waits for space, or if one of this path has started to wait for bytes."""
        calls = self.pools[alloc_version].calls
        return self.table.snapshot().num_waiting > 0 or "get_items_data" in calls
