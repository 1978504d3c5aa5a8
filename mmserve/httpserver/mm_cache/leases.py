"""Leases on a request's images in the arena: allocate, write, wait for data of others, compare, release.

The cache server decides which request writes an image and which ones wait for it. The states of a record are explained
at ``cache_server.entries.Stage``. Blocking calls run in threads, and a cancelled request waits for its thread to
return. So a lease is released exactly once, and never while a thread still writes under it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver import stage_times
from mmserve.httpserver.call import AllocVersion, LeasedItem, MediaItem
from mmserve.httpserver.limits.media_budgets import MediaBudgets
from mmserve.httpserver.media.content_key import second_key
from mmserve.httpserver.mm_cache.calls import AsyncCacheClient
from mmserve.httpserver.mm_cache.image_sizes import ImageSizes
from mmserve.httpserver.mm_cache.lease_request import LeaseRequest, with_states
from mmserve.httpserver.mm_cache.named_images import names_of
from mmserve.httpserver.mm_cache.stored_bytes import differs, write
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.cache import AllocItem, MediaRecord, NamedImage, StoredImage
from mmserve.messages.media import Processing
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.processors.interface import Expansion
from mmserve.runtime.errors import Shortage, Unavailable
from mmserve.runtime.retry_after import AFTER_CACHE_RESTART_S, Turnover
from mmserve.runtime.worker_threads import MIN_BATCH_NBYTES, WorkerThreads

_RETRY_AFTER_S = 5.0
"""Before any lease has ended."""
_RECONNECT_S = 0.25
B = TypeVar("B")
logger = logging.getLogger(__name__)


class MediaLeases:
    """One per allocation path of an HTTP worker.

    ``client`` is for tests; the default one connects at the first call. ``timeout_s`` limits the wait of one request
    for its leases; the default is --mm-queue-timeout.
    """

    def __init__(
        self,
        deployment: Deployment,
        arena: Arena,
        endpoints: Endpoints,
        owner: str,
        metrics: MetricsClient,
        alloc_version: AllocVersion = "v2",
        *,
        client: MediaCacheClient | None = None,
        timeout_s: float | None = None,
    ) -> None:
        concurrent, workers = alloc_version == "v2", deployment.config.concurrent_alloc_workers
        self._budgets = MediaBudgets(deployment.budgets, arena.nbytes, metrics, alloc_version)
        self._arena = arena
        self._metrics = metrics
        self._timeout_s = deployment.config.mm_queue_timeout if timeout_s is None else timeout_s
        self._alloc_version = alloc_version
        self._sizes = ImageSizes(deployment)
        self._threads = WorkerThreads(f"lease-{alloc_version}", workers, concurrent=concurrent)
        self._client = client or connect(endpoints, owner, batched=concurrent)
        self._turnover = Turnover(_RETRY_AFTER_S)
        """Of requests with leases."""
        self._cache = AsyncCacheClient(self._client, self._threads, metrics, alloc_version, self._turnover)
        self._max_inline_nbytes = 2 * MIN_BATCH_NBYTES if concurrent else 0
        """Images of this size in all, or less, are written by the thread that made the allocation call: so few bytes
        are copied before other threads could start. 0 in v1, where each image is a job of its own."""

    def hold(self, request_id: str, items: Sequence[MediaItem]) -> AbstractAsyncContextManager[list[LeasedItem]]:
        """Leases for ``items``, in order. The arena holds the compressed bytes or the embedding of each. The leases are
        released when the context ends.

        Raises MediaError, MediaNotStored, TooLarge (never fits) or Unavailable (no space or data in time; try again).
        """
        return self._hold(request_id, items)

    def expansions(self, items: Sequence[MediaItem]) -> list[Expansion]:
        """What each image becomes in a prompt. Raises MediaError."""
        return self._sizes.expansions(items)

    def settings_digest(self, processing: Processing) -> bytes:
        """Differs if the same image would become something else."""
        return self._sizes.settings_digest(processing)

    async def named(self, names: Sequence[bytes]) -> Sequence[NamedImage | None]:
        """The images that names stand for. Raises Unavailable."""
        return await self._cache.get_names(names)

    def alloc_items(self, items: Sequence[MediaItem], expansions: Sequence[Expansion]) -> list[AllocItem]:
        """As what the cache server knows the images."""
        return self._sizes.alloc_items(items, expansions)

    async def look_up(self, items: Sequence[AllocItem]) -> Sequence[StoredImage]:
        """What is stored of each image; nothing is leased. Raises Unavailable."""
        return await self._cache.look_up(items) if items else ()

    async def aclose(self) -> None:
        """Close threads and connections. Remaining leases end with the connections."""
        await self._cache.aclose()
        self._threads.close()

    @asynccontextmanager
    async def _hold(self, request_id: str, items: Sequence[MediaItem]) -> AsyncIterator[list[LeasedItem]]:
        if not items:
            yield []
            return
        expansions, decoded_nbytes = self._sizes.expansions(items), self._sizes.decoded_nbytes(items)
        alloc_items = self._sizes.alloc_items(items, expansions)
        self._budgets.check(alloc_items, decoded_nbytes)
        try:
            records = await self._acquire(request_id, items, alloc_items)
            with self._turnover.held():
                yield [
                    LeasedItem(record, expansion, item.processing, nbytes, item.key)
                    for record, expansion, item, nbytes in zip(records, expansions, items, decoded_nbytes, strict=True)
                ]
        finally:
            await self._cache.release(request_id)

    async def _acquire(
        self, request_id: str, items: Sequence[MediaItem], alloc_items: Sequence[AllocItem]
    ) -> Sequence[MediaRecord]:
        """Records in state "data" or "hit". After Unavailable, starts over until the deadline.

        The cause may be a restart of the cache server. It ends all leases, and the new process serves soon.
        """
        started_s = time.monotonic()
        deadline_s = started_s + self._timeout_s
        while True:
            try:
                records = await self._alloc_and_write(LeaseRequest(request_id, items, list(alloc_items), deadline_s))
                alloc_s = time.monotonic() - started_s
                stage_times.record("alloc", alloc_s)
                self._metrics.add("mm_alloc_seconds", alloc_s, self._alloc_version)
                return records
            except Shortage:  # nobody knows when it passes
                raise
            except Unavailable:
                if time.monotonic() + _RECONNECT_S > deadline_s:
                    raise
            await asyncio.sleep(_RECONNECT_S)

    async def _alloc_and_write(self, request: LeaseRequest) -> Sequence[MediaRecord]:
        """Allocate, write, wait, compare; then again with second keys for images that collided with other content.

        Returns records in state "data" or "hit".
        """
        while True:
            request.written.clear()
            records = await self._cache.alloc(
                request.request_id,
                request.alloc_items,
                request.deadline_s,
                lambda allocated: self._write_inline(request, allocated),
            )
            records = await self._write(request, records)
            while any(record.state == "wait" for record in records):
                records = await self._wait_for_data(request, records)
                records = await self._write(request, records)
            collided = await self._compare(request, records)
            if not collided:
                await self._cache.set_names(names_of(request.items, request.alloc_items))
                return records
            await self._give_second_keys(request, collided)

    def _write_inline(self, request: LeaseRequest, records: Sequence[MediaRecord]) -> Sequence[MediaRecord]:
        """Blocking. Writes the images if they are small in total; otherwise leaves them to ``_write``."""
        jobs = request.to_write(records)
        if not jobs or sum(request.nbytes([*jobs.values()])) > self._max_inline_nbytes:
            return records
        started_s = time.monotonic()
        for index in jobs.values():
            self._write_item(request, records, index)
        self._client.set_items_data(request.request_id, tuple(jobs))
        request.write_s = time.monotonic() - started_s
        return request.mark_written(records, jobs)

    async def _write(self, request: LeaseRequest, records: Sequence[MediaRecord]) -> Sequence[MediaRecord]:
        """Write the images in state "write", each content once, then report all of them with one RPC."""
        if jobs := request.to_write(records):
            num_left, started_s = itertools.count(len(jobs) - 1, -1), time.monotonic()

            def write_one(index: int) -> None:
                self._write_item(request, records, index)
                # The last thread to finish makes the RPC; that saves one more hand-over to a thread.
                if next(num_left) == 0:
                    self._client.set_items_data(request.request_id, tuple(jobs))

            await self._map(write_one, request, list(jobs.values()))
            request.write_s = time.monotonic() - started_s
            records = request.mark_written(records, jobs)
        if request.write_s:
            stage_times.record("write", request.write_s)
            self._metrics.add("mm_write_seconds", request.write_s, self._alloc_version)
            self._metrics.add("mm_copied_bytes", request.written_nbytes, "data", self._alloc_version)
            request.write_s, request.written_nbytes = 0.0, 0
        return records

    def _write_item(self, request: LeaseRequest, records: Sequence[MediaRecord], index: int) -> None:
        handle = records[index].data
        assert handle is not None, "a record in state write has a data handle"
        write(self._arena, handle, request.items[index].data)

    async def _wait_for_data(self, request: LeaseRequest, records: Sequence[MediaRecord]) -> Sequence[MediaRecord]:
        """Records with new states: those in state "wait" become "data", "hit", "write", or stay "wait"."""
        ids = tuple(dict.fromkeys(record.item_id for record in records if record.state == "wait"))
        if time.monotonic() >= request.deadline_s:
            raise Unavailable(
                "another request did not write an image of this request in time",
                retry_after_s=self._turnover.seconds_until_free(),
            )
        states = await self._cache.wait_for_data(request.request_id, ids, request.deadline_s)
        if "gone" in states:
            raise Unavailable(
                "an image of this request is no longer in the media cache", retry_after_s=AFTER_CACHE_RESTART_S
            )
        return with_states(records, dict(zip(ids, states, strict=True)))

    async def _compare(self, request: LeaseRequest, records: Sequence[MediaRecord]) -> list[int]:
        """Indices of items whose content key collides: the arena holds other bytes under it. Bytes that were evicted
        after encoding cannot be compared."""
        stored_by_others = request.stored_by_others(records)
        if not stored_by_others:
            return []
        started_s = time.monotonic()
        results = await self._map(lambda index: self._differs(request, records, index), request, stored_by_others)
        self._metrics.add("mm_compare_seconds", time.monotonic() - started_s, self._alloc_version)
        return [index for index, collides in zip(stored_by_others, results, strict=True) if collides]

    def _differs(self, request: LeaseRequest, records: Sequence[MediaRecord], index: int) -> bool:
        handle = records[index].data
        assert handle is not None, "an image that is not encoded yet has a data handle"
        return differs(self._arena, handle, request.items[index].data)

    async def _give_second_keys(self, request: LeaseRequest, collided: Sequence[int]) -> None:
        """Replace the content keys of the ``collided`` items, and release all leases of the request.

        The caller then allocates all items again, which may wait for space. While it waits, the request must hold no
        leases: two such requests could deadlock.
        """
        logger.warning("request %s: %d images share content keys with others", request.request_id, len(collided))
        self._metrics.add("mm_hash_collisions", len(collided), self._alloc_version)
        await self._cache.release_now(request.request_id)
        items = request.items
        keys = await self._map(lambda index: second_key(items[index].key, items[index].data), request, collided)
        request.replace_keys(dict(zip(collided, keys, strict=True)))

    async def _map(self, work: Callable[[int], B], request: LeaseRequest, indices: Sequence[int]) -> list[B]:
        """``work`` for each index, in this path's threads; it reads about all bytes of each item."""
        return await self._threads.map(work, indices, request.nbytes(indices))
