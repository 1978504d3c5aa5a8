"""An HTTP worker's handling of a request's images, by its own code: hash, allocate, write, report.

Only ``_alloc_path`` depends on how the worker's classes are constructed.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.images.media.cache_process import CacheProcess
from mmserve.cache_server.client import MediaCacheClient
from mmserve.httpserver.call import MediaItem, MediaRef
from mmserve.httpserver.media.reader import MediaReader
from mmserve.httpserver.mm_cache.leases import MediaLeases
from mmserve.monitoring.metrics.client import MetricsClient

Identify = Callable[[Sequence[bytes], str], Awaitable[list[MediaItem]]]


@dataclass(frozen=True)
class Sample:
    """One allocation, in milliseconds; ``rpc_ms``: time in each call to the cache server, by name."""

    total_ms: float
    release_ms: float
    rpc_ms: dict[str, float]


@dataclass
class _TimedClient:
    """Wraps the client of the worker's code and measures its calls."""

    client: MediaCacheClient
    ms: dict[str, float] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self.client, name)

        def timed(*args: Any, **named: Any) -> Any:
            started_s = time.perf_counter()
            result = call(*args, **named)
            self.ms[name] = self.ms.get(name, 0.0) + (time.perf_counter() - started_s) * 1e3
            return result

        return timed


def _alloc_path(
    cache: CacheProcess, name: str, alloc_version: str, client: _TimedClient
) -> tuple[Identify, MediaReader, MediaLeases]:
    """Reader and leases of one allocation path, as a worker constructs them.

    Reading starts from compressed bytes (after fetch or base64 decoding), because the published figures and the limit
    count from there.
    """
    metrics = MetricsClient(cache.endpoints, name)
    reader = MediaReader(cache.deployment, metrics, alloc_version)
    leases = MediaLeases(cache.deployment, cache.arena, cache.endpoints, name, metrics, alloc_version, client=client)

    ref = MediaRef("", "images")

    async def identify(images: Sequence[bytes], salt: str) -> list[MediaItem]:
        found = await reader._map(
            lambda image: reader._identify(ref, image, salt, 0.0),
            images,
            [len(image) for image in images],
        )
        return [one.item for one in found]

    return identify, reader, leases


class Worker:
    """One HTTP worker's media code of one alloc_version (v1 or v2), and a visual server's calls to make hits."""

    def __init__(self, cache: CacheProcess, alloc_version: str) -> None:
        self.path = alloc_version
        name = f"httpserver-{alloc_version}"
        self._calls = _TimedClient(cache.client(name, batched=alloc_version == "v2"))
        self._identify, self._reader, self._leases = _alloc_path(cache, name, alloc_version, self._calls)
        self._visual = cache.client(f"visualserver-{alloc_version}")
        self._requests = 0

    async def allocate(self, images: Sequence[bytes], salt: str) -> Sample:
        """One request with these images; they are hits the next time they come with the same salt."""
        self._requests += 1
        self._calls.ms.clear()
        started_s = time.perf_counter()
        items = await self._identify(images, salt)
        async with self._leases.hold(f"request-{self._requests}", items) as leased:
            total_s = time.perf_counter() - started_s
            ids = [each.record.item_id for each in leased]
            pending = [
                item_id
                for item_id, state in zip(ids, self._visual.get_items_embed(ids), strict=True)
                if state == "pending"
            ]
            self._visual.set_items_embed(pending, [True] * len(pending))
            started_s = time.perf_counter()
        return Sample(total_s * 1e3, (time.perf_counter() - started_s) * 1e3, dict(self._calls.ms))

    async def aclose(self) -> None:
        await self._reader.aclose()
        await self._leases.aclose()
        self._visual.close()
