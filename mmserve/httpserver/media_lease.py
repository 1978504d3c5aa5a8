"""A request's images in the arena, leased for as long as the request needs them: alloc, write, wait, release.

Blocking calls run in threads and are never abandoned midway, so the lease is given back exactly once and never while
a thread still writes under it. Knows no prompt and no engine; the cache server decides who writes and who waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import msgspec

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.deployment import Deployment
from mmserve.errors import MmserveError, Overloaded, Unavailable
from mmserve.httpserver.call import LeasedItem, MediaItem
from mmserve.httpserver.threads import Threads
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.cache import AllocItem, ItemState, MediaRecord
from mmserve.metrics.client import MetricsClient
from mmserve.processors.registry import processor_for

PATIENCE_S = 10.0
"""How long one request waits for arena space, and for images that others write."""
_RETRY_AFTER_S = 1.0
_RECONNECT_S = 0.25
_WAITING_THREADS = 16
B = TypeVar("B")
logger = logging.getLogger(__name__)


class MediaLeases:
    """One per HTTP worker. ``client`` is for tests; by default it connects to the cache server at the first call."""

    def __init__(
        self,
        deployment: Deployment,
        arena: Arena,
        endpoints: Endpoints,
        owner: str,
        metrics: MetricsClient,
        *,
        client: MediaCacheClient | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        config = deployment.config
        self._deployment = deployment
        self._arena = arena
        self._metrics = metrics
        self._patience_s = patience_s
        self._generation = "v2" if config.enable_concurrent_alloc else "v1"
        self._client = client or connect(endpoints, owner, batched=config.enable_concurrent_alloc)
        self._processor = processor_for(deployment.model)
        self._threads = Threads("lease", config.concurrent_alloc_workers, concurrent=config.enable_concurrent_alloc)
        # Calls that may wait have threads of their own: what ends their waiting must never queue behind them.
        self._waiting = Threads("lease-wait", _WAITING_THREADS)

    def hold(self, request_id: str, items: Sequence[MediaItem]) -> AbstractAsyncContextManager[list[LeasedItem]]:
        """The items in their order, bytes or embedding ready, leased until the context ends, however it ends.

        Raises MediaError, TooLarge (can never fit), Overloaded or Unavailable (try again).
        """
        return self._hold(request_id, items)

    async def aclose(self) -> None:
        """Close threads and connections; leases that are left end with the connections."""
        await self._threads.run(self._client.close)
        self._threads.close()
        self._waiting.close()

    @asynccontextmanager
    async def _hold(self, request_id: str, items: Sequence[MediaItem]) -> AsyncIterator[list[LeasedItem]]:
        if not items:
            yield []
            return
        tokens = [self._num_tokens(item) for item in items]
        try:
            records = await self._acquire(request_id, items, tokens)
            yield [LeasedItem(record, count) for record, count in zip(records, tokens, strict=True)]
        finally:
            await self._release(request_id)

    async def _acquire(
        self, request_id: str, items: Sequence[MediaItem], tokens: Sequence[int]
    ) -> Sequence[MediaRecord]:
        """Records of images that are all ready; from the start again when the cache server was restarted."""
        started_s = time.monotonic()
        deadline_s = started_s + self._patience_s
        wanted = self._wanted(items, tokens)
        while True:
            try:
                records = await self._make_ready(request_id, items, wanted, deadline_s)
                self._metrics.add("mm_alloc_seconds", time.monotonic() - started_s, self._generation)
                return records
            except Unavailable:
                if time.monotonic() + _RECONNECT_S > deadline_s:
                    raise
            await asyncio.sleep(_RECONNECT_S)

    async def _make_ready(
        self, request_id: str, items: Sequence[MediaItem], wanted: list[AllocItem], deadline_s: float
    ) -> Sequence[MediaRecord]:
        records = await self._alloc(request_id, wanted, deadline_s)
        for record in records:
            self._metrics.add("mm_items", 1, record.state)
        records = await self._write(request_id, records, items)
        while any(record.state == "wait" for record in records):
            records = await self._await_others(request_id, records, deadline_s)
            records = await self._write(request_id, records, items)
        return records

    def _num_tokens(self, item: MediaItem) -> int:
        assert self._processor is not None, "a text model's request holds no images"
        try:
            return self._processor.num_tokens(item.width, item.height)
        except MmserveError as error:
            error.param = item.param
            raise

    def _wanted(self, items: Sequence[MediaItem], tokens: Sequence[int]) -> list[AllocItem]:
        row_nbytes = self._deployment.embed_row_nbytes
        return [
            AllocItem(item.key, count, len(item.data), count * row_nbytes)
            for item, count in zip(items, tokens, strict=True)
        ]

    async def _alloc(self, request_id: str, wanted: list[AllocItem], deadline_s: float) -> Sequence[MediaRecord]:
        """At once if there is space; only otherwise in a thread that waits for some."""
        try:
            return await self._timed(self._threads, lambda: self._client.alloc(request_id, wanted, wait_s=0.0))
        except Overloaded:
            wait_s = max(0.0, deadline_s - time.monotonic())
            return await self._timed(self._waiting, lambda: self._client.alloc(request_id, wanted, wait_s=wait_s))

    async def _timed(self, threads: Threads, call: Callable[[], B]) -> B:
        def timed() -> tuple[B, float]:
            started_s = time.monotonic()
            return call(), time.monotonic() - started_s

        result, seconds = await threads.run(timed)
        self._metrics.add("mm_alloc_rpc_seconds", seconds, self._generation)
        return result

    async def _write(
        self, request_id: str, records: Sequence[MediaRecord], items: Sequence[MediaItem]
    ) -> Sequence[MediaRecord]:
        """Bytes of the records that say "write", each content once, then one word to the cache server."""
        jobs = {
            record.item_id: (record, item)
            for record, item in zip(records, items, strict=True)
            if record.state == "write"
        }
        if not jobs:
            return records
        started_s = time.monotonic()
        await self._threads.map(self._write_one, list(jobs.values()), [len(item.data) for _, item in jobs.values()])
        self._metrics.add("mm_write_seconds", time.monotonic() - started_s)
        await self._threads.run(lambda: self._client.set_items_data(request_id, tuple(jobs)))
        return _with_states(records, dict.fromkeys(jobs, "data"))

    def _write_one(self, job: tuple[MediaRecord, MediaItem]) -> None:
        record, item = job
        assert record.data is not None, "whoever shall write is told where"
        try:
            self._arena.write(record.data, item.data)
        except StaleHandle as stale:
            raise Unavailable("the media cache was restarted", retry_after_s=_RETRY_AFTER_S) from stale

    async def _await_others(
        self, request_id: str, records: Sequence[MediaRecord], deadline_s: float
    ) -> Sequence[MediaRecord]:
        """New states: those that were "wait" are ready, or ours to write, or still "wait" for others to be written."""
        ids = tuple(dict.fromkeys(record.item_id for record in records if record.state == "wait"))
        wait_s = deadline_s - time.monotonic()
        if wait_s <= 0:
            raise Unavailable("an image of this request did not become ready in time", retry_after_s=_RETRY_AFTER_S)
        found = await self._waiting.run(lambda: self._client.get_items_data(request_id, ids, wait_s=wait_s))
        if "gone" in found:
            raise Unavailable("the media cache was restarted", retry_after_s=_RETRY_AFTER_S)
        return _with_states(records, dict(zip(ids, found, strict=True)))

    async def _release(self, request_id: str) -> None:
        try:
            await self._threads.run(lambda: self._client.release(request_id))
        except Unavailable:
            logger.info("request %s: the cache server that held its leases is gone", request_id)


def _with_states(records: Sequence[MediaRecord], states: Mapping[int, ItemState]) -> list[MediaRecord]:
    return [msgspec.structs.replace(record, state=states.get(record.item_id, record.state)) for record in records]
