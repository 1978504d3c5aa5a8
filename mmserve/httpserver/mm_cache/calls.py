"""The cache server's calls, awaited: in threads that are never abandoned; what may wait there ends when cancelled.

Knows requests by their ids and images by what the cache server says of them; touches no bytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from mmserve.cache_server.client import MediaCacheClient
from mmserve.httpserver.call import AllocVersion
from mmserve.messages.cache import AllocItem, ItemState, MediaRecord
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.errors import Overloaded, Unavailable
from mmserve.runtime.uncancelled import to_completion
from mmserve.runtime.worker_threads import WorkerThreads

_WAITING_THREADS = 16
_RETRY_AFTER_S = 1.0
_RELEASE_AGAIN_S = 0.02
B = TypeVar("B")
Records = Sequence[MediaRecord]
logger = logging.getLogger(__name__)


class _Waiting:
    """Threads that wait in the server, and who may have one: first come first served, and free to leave until then."""

    def __init__(self, name: str) -> None:
        self.threads = WorkerThreads(name, _WAITING_THREADS)
        self.places = asyncio.Semaphore(_WAITING_THREADS)


class CacheCalls:
    """One per lane. ``threads`` are the lane's; calls that may wait have their own, so that those that end a wait never
    queue behind it: who waits for space holds nothing, who waits for others may hold what others need."""

    def __init__(
        self, client: MediaCacheClient, threads: WorkerThreads, metrics: MetricsClient, alloc_version: AllocVersion
    ) -> None:
        self._client = client
        self._threads = threads
        self._for_space = _Waiting(f"lease-space-{alloc_version}")
        self._for_others = _Waiting(f"lease-others-{alloc_version}")
        self._metrics = metrics
        self._alloc_version = alloc_version
        self._num_waiting = 0

    async def alloc(
        self, request_id: str, items: Sequence[AllocItem], deadline_s: float, then: Callable[[Records], Records]
    ) -> Records:
        """See MediaCacheClient.alloc. At once if there is space; only otherwise in a thread that waits for some.

        At once, ``then`` goes on with the records in the same thread. After a wait it does not: whoever is cancelled
        there is released while the thread runs, so nothing may be written by it.
        """

        def call(wait_s: float) -> tuple[Records, float]:
            started_s = time.monotonic()
            return self._client.alloc(request_id, items, wait_s=wait_s), time.monotonic() - started_s

        def call_and_go_on() -> tuple[Records, float, Records]:
            records, seconds = call(0.0)
            return records, seconds, then(records)

        try:
            records, seconds, result = await self._threads.run(call_and_go_on)
        except Overloaded:
            records, seconds = await self._after_waiting(request_id, deadline_s, call)
            result = records
        self._metrics.add("mm_alloc_rpc_seconds", seconds, self._alloc_version)
        for state, count in Counter(record.state for record in records).items():
            self._metrics.add("mm_items", count, state, self._alloc_version)
        return result

    async def await_others(self, request_id: str, item_ids: Sequence[int], deadline_s: float) -> Sequence[ItemState]:
        """States of items that others write, once one of them changes or it is too late. Raises Unavailable when it was
        too late to ask, so many wait."""
        try:
            return await self._patiently(
                self._for_others,
                request_id,
                deadline_s,
                lambda wait_s: self._client.get_items_data(request_id, item_ids, wait_s=wait_s),
            )
        except TimeoutError:
            raise Unavailable(
                "an image of this request did not become ready in time", retry_after_s=_RETRY_AFTER_S
            ) from None

    async def release(self, request_id: str) -> None:
        """End the request's leases; doing it twice, or without a server, is harmless."""
        try:
            await self._threads.run(lambda: self._client.release(request_id))
        except Unavailable:
            logger.info("request %s: the cache server that held its leases is gone", request_id)

    async def aclose(self) -> None:
        """Close connections and the waiting threads; leases that are left end with the connections."""
        with suppress(Unavailable):
            await self._threads.run(self._client.unregister)
        await self._threads.run(self._client.close)
        self._for_space.threads.close()
        self._for_others.threads.close()

    async def _after_waiting(self, request_id: str, deadline_s: float, call: Callable[[float], B]) -> B:
        self._count_waiting(1)
        try:
            return await self._patiently(self._for_space, request_id, deadline_s, call)
        except (Overloaded, TimeoutError):
            raise Unavailable(
                "no space for this request's images became free in time (--data-budget-mb, --mm-cache-gb)",
                retry_after_s=_RETRY_AFTER_S,
            ) from None
        finally:
            self._count_waiting(-1)

    def _count_waiting(self, change: int) -> None:
        """Those in line for a thread to wait in as well, of whom the cache server does not know yet."""
        self._num_waiting += change
        self._metrics.add("mm_alloc_waiting", self._num_waiting, self._alloc_version)

    async def _patiently(self, line: _Waiting, request_id: str, deadline_s: float, call: Callable[[float], B]) -> B:
        """A call that may wait in the server, so long. When it is cancelled, releases there end its waiting."""
        async with asyncio.timeout(_left_s(deadline_s)) as in_line:
            await line.places.acquire()
            in_line.reschedule(None)
        try:
            waiting = asyncio.ensure_future(line.threads.run(lambda: call(_left_s(deadline_s))))
            try:
                return await asyncio.shield(waiting)
            except asyncio.CancelledError:
                await to_completion(self._end(request_id, waiting))
                raise
        finally:
            line.places.release()

    async def _end(self, request_id: str, waiting: asyncio.Future[B]) -> None:
        """A release may reach the server, on a connection of its own, before the call that it shall end, and find
        nothing to end; nobody there can tell that from a request that holds nothing. So it is repeated until then.
        """
        while not waiting.done():
            await self.release(request_id)
            await asyncio.wait([waiting], timeout=_RELEASE_AGAIN_S)
        waiting.exception()  # looked at, so that asyncio does not report what nobody waits for any more


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())
