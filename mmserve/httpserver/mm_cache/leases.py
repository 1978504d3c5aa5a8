"""A request's images in the arena, leased for as long as the request needs them: alloc, write, wait, compare, release.

Blocking calls run in threads and are never abandoned midway, so the lease is given back exactly once and never while
a thread still writes under it. Knows no prompt and no engine; the cache server decides who writes and who waits.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.config.deployment import Deployment
from mmserve.httpserver.call import AllocVersion, LeasedItem, MediaItem
from mmserve.httpserver.limits.media_budgets import MediaBudgets
from mmserve.httpserver.media.content_key import second_key
from mmserve.httpserver.mm_cache.calls import CacheCalls
from mmserve.httpserver.mm_cache.stored_bytes import differs, put
from mmserve.ipc.arena import Arena
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.cache import AllocItem, ItemState, MediaRecord
from mmserve.metrics.client import MetricsClient
from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import MmserveError, Unavailable
from mmserve.runtime.worker_threads import MIN_BATCH_NBYTES, WorkerThreads

_RETRY_AFTER_S = 1.0
_RECONNECT_S = 0.25
B = TypeVar("B")
logger = logging.getLogger(__name__)


@dataclass
class _Holding:
    """One request's way to its leases. ``wanted`` are its ``items`` as the cache server is asked for them."""

    request_id: str
    items: Sequence[MediaItem]
    wanted: list[AllocItem]
    deadline_s: float
    own: set[int] = field(default_factory=set)
    """Indices of items that are known to be what stands in the arena: this request has written them."""
    write_s: float = 0.0
    written_nbytes: int = 0


class MediaLeases:
    """One per lane of an HTTP worker. ``client`` is for tests; by default it connects at the first call."""

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
        patience_s: float | None = None,
    ) -> None:
        concurrent, workers = alloc_version == "v2", deployment.config.concurrent_alloc_workers
        self._deployment = deployment
        self._budgets = MediaBudgets(deployment.budgets, arena.nbytes, metrics, alloc_version)
        self._arena = arena
        self._metrics = metrics
        self._patience_s = deployment.config.mm_queue_timeout if patience_s is None else patience_s
        self._alloc_version = alloc_version
        self._processor = processor_for(deployment.model)
        self._threads = WorkerThreads(f"lease-{alloc_version}", workers, concurrent=concurrent)
        self._client = client or connect(endpoints, owner, batched=concurrent)
        self._cache = CacheCalls(self._client, self._threads, metrics, alloc_version)
        self._little_nbytes = 2 * MIN_BATCH_NBYTES if concurrent else 0
        """So much is written by the thread that has allocated; handing it to others would take longer."""

    def hold(self, request_id: str, items: Sequence[MediaItem]) -> AbstractAsyncContextManager[list[LeasedItem]]:
        """The items in their order, bytes or embedding ready, leased until the context ends, however it ends.

        Raises MediaError, TooLarge (can never fit), Overloaded or Unavailable (try again).
        """
        return self._hold(request_id, items)

    async def aclose(self) -> None:
        """Close threads and connections; leases that are left end with the connections."""
        await self._cache.aclose()
        self._threads.close()

    @asynccontextmanager
    async def _hold(self, request_id: str, items: Sequence[MediaItem]) -> AsyncIterator[list[LeasedItem]]:
        if not items:
            yield []
            return
        wanted, decoded = self._wanted(items), [self._decoded_nbytes(item) for item in items]
        self._budgets.check(wanted, decoded)
        try:
            records = await self._acquire(request_id, items, wanted)
            yield [
                LeasedItem(record, one.num_tokens, nbytes)
                for record, one, nbytes in zip(records, wanted, decoded, strict=True)
            ]
        finally:
            await self._cache.release(request_id)

    async def _acquire(
        self, request_id: str, items: Sequence[MediaItem], wanted: Sequence[AllocItem]
    ) -> Sequence[MediaRecord]:
        """Records of images that are all ready; from the start again when the cache server was restarted."""
        started_s = time.monotonic()
        deadline_s = started_s + self._patience_s
        while True:
            try:
                records = await self._make_ready(_Holding(request_id, items, list(wanted), deadline_s))
                self._metrics.add("mm_alloc_seconds", time.monotonic() - started_s, self._alloc_version)
                return records
            except Unavailable:
                if time.monotonic() + _RECONNECT_S > deadline_s:
                    raise
            await asyncio.sleep(_RECONNECT_S)

    async def _make_ready(self, holding: _Holding) -> Sequence[MediaRecord]:
        """Alloc, write, wait, compare; once more for content whose key turns out to be another's."""
        while True:
            holding.own.clear()
            records = await self._cache.alloc(
                holding.request_id, holding.wanted, holding.deadline_s, lambda found: self._write_little(holding, found)
            )
            records = await self._write(holding, records)
            while any(record.state == "wait" for record in records):
                records = await self._await_others(holding, records)
                records = await self._write(holding, records)
            collided = await self._compare(holding, records)
            if not collided:
                return records
            await self._give_second_keys(holding, collided)

    def _wanted(self, items: Sequence[MediaItem]) -> list[AllocItem]:
        tokens = [self._num_tokens(item) for item in items]
        row_nbytes = self._deployment.embed_row_nbytes
        return [
            AllocItem(item.key, count, len(item.data), count * row_nbytes)
            for item, count in zip(items, tokens, strict=True)
        ]

    def _num_tokens(self, item: MediaItem) -> int:
        assert self._processor is not None, "a text model's request holds no images"
        try:
            return self._processor.num_tokens(item.width, item.height)
        except MmserveError as error:
            error.param = item.param
            raise

    def _decoded_nbytes(self, item: MediaItem) -> int:
        assert self._processor is not None, "a text model's request holds no images"
        return self._processor.decoded_nbytes(item.width, item.height)

    def _write_little(self, holding: _Holding, records: Sequence[MediaRecord]) -> Sequence[MediaRecord]:
        """Blocking. Leaves what is more than a little to ``_write``."""
        jobs = _to_write(records)
        if not jobs or sum(len(holding.items[index].data) for index in jobs.values()) > self._little_nbytes:
            return records
        started_s = time.monotonic()
        for index in jobs.values():
            self._put(holding, records, index)
        self._client.set_items_data(holding.request_id, tuple(jobs))
        holding.write_s = time.monotonic() - started_s
        return _written(holding, records, jobs)

    async def _write(self, holding: _Holding, records: Sequence[MediaRecord]) -> Sequence[MediaRecord]:
        """Bytes of the records that say "write", each content once, then one word to the cache server."""
        if jobs := _to_write(records):
            left, started_s = itertools.count(len(jobs) - 1, -1), time.monotonic()

            def one(index: int) -> None:
                self._put(holding, records, index)
                # The last to be done tells, so that nobody waits for that to be asked of a thread again.
                if next(left) == 0:
                    self._client.set_items_data(holding.request_id, tuple(jobs))

            await self._each(one, holding, list(jobs.values()))
            holding.write_s = time.monotonic() - started_s
            records = _written(holding, records, jobs)
        if holding.write_s:
            self._metrics.add("mm_write_seconds", holding.write_s, self._alloc_version)
            self._metrics.add("mm_copied_bytes", holding.written_nbytes, "data", self._alloc_version)
            holding.write_s, holding.written_nbytes = 0.0, 0
        return records

    def _put(self, holding: _Holding, records: Sequence[MediaRecord], index: int) -> None:
        place = records[index].data
        assert place is not None, "who shall write is told where"
        put(self._arena, place, holding.items[index].data)

    async def _await_others(self, holding: _Holding, records: Sequence[MediaRecord]) -> Sequence[MediaRecord]:
        """New states: those that were "wait" are ready, or ours to write, or still "wait" for others to be written."""
        ids = tuple(dict.fromkeys(record.item_id for record in records if record.state == "wait"))
        if time.monotonic() >= holding.deadline_s:
            raise Unavailable("an image of this request did not become ready in time", retry_after_s=_RETRY_AFTER_S)
        found = await self._cache.await_others(holding.request_id, ids, holding.deadline_s)
        if "gone" in found:
            raise Unavailable("the media cache was restarted", retry_after_s=_RETRY_AFTER_S)
        return _with_states(records, dict(zip(ids, found, strict=True)))

    async def _compare(self, holding: _Holding, records: Sequence[MediaRecord]) -> list[int]:
        """Indices of items whose key stands for other bytes, as far as those are still in the arena to be looked at."""
        others = [
            index
            for index, record in enumerate(records)
            if record.state == "data"
            and index not in holding.own
            and holding.wanted[index].key == holding.items[index].key
        ]
        if not others:
            return []
        started_s = time.monotonic()
        found = await self._each(lambda index: self._differs(holding, records, index), holding, others)
        self._metrics.add("mm_compare_seconds", time.monotonic() - started_s, self._alloc_version)
        return [index for index, collides in zip(others, found, strict=True) if collides]

    def _differs(self, holding: _Holding, records: Sequence[MediaRecord], index: int) -> bool:
        place = records[index].data
        assert place is not None, "an image that is not encoded has its bytes"
        return differs(self._arena, place, holding.items[index].data)

    async def _give_second_keys(self, holding: _Holding, collided: Sequence[int]) -> None:
        """Nothing is held while all is allocated again, as nothing is held by any request that waits for space."""
        logger.warning("request %s: %d images share content keys with others", holding.request_id, len(collided))
        self._metrics.add("mm_hash_collisions", len(collided), self._alloc_version)
        await self._cache.release(holding.request_id)
        items = holding.items
        keys = await self._each(lambda index: second_key(items[index].key, items[index].data), holding, collided)
        for index, key in zip(collided, keys, strict=True):
            holding.wanted[index] = msgspec.structs.replace(holding.wanted[index], key=key)

    async def _each(self, work: Callable[[int], B], holding: _Holding, indices: Sequence[int]) -> list[B]:
        """In the lane's threads; about all bytes of these items are gone through."""
        return await self._threads.map(work, indices, [len(holding.items[index].data) for index in indices])


def _to_write(records: Sequence[MediaRecord]) -> dict[int, int]:
    """Item id -> index of one item that says "write"."""
    return {record.item_id: index for index, record in enumerate(records) if record.state == "write"}


def _written(holding: _Holding, records: Sequence[MediaRecord], jobs: Mapping[int, int]) -> list[MediaRecord]:
    holding.own.update(jobs.values())
    holding.written_nbytes += sum(len(holding.items[index].data) for index in jobs.values())
    return _with_states(records, dict.fromkeys(jobs, "data"))


def _with_states(records: Sequence[MediaRecord], states: Mapping[int, ItemState]) -> list[MediaRecord]:
    return [msgspec.structs.replace(record, state=states.get(record.item_id, record.state)) for record in records]
