"""Async calls to the cache server. Each blocking call runs in a thread, and its caller waits until the thread returns.

Two kinds of call may wait inside the cache server: for arena space (alloc), and for image data that another request
writes. Both end early when their request is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from mmserve.cache_server.client import MediaCacheClient
from mmserve.httpserver.call import AllocVersion
from mmserve.httpserver.mm_cache.late_releases import LateReleases
from mmserve.messages.cache import AllocItem, ItemState, MediaRecord, NamedImage, StoredImage
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.errors import Overloaded, Unavailable
from mmserve.runtime.retry_after import Turnover
from mmserve.runtime.uncancelled import to_completion
from mmserve.runtime.worker_threads import WorkerThreads

_MAX_WAITING_CALLS = 16
_RELEASE_RETRY_S = 0.02
B = TypeVar("B")
Records = Sequence[MediaRecord]
logger = logging.getLogger(__name__)


class _WaitingThreads:
    """WorkerThreads for calls that may block in the cache server. Requests get a thread in order of arrival."""

    def __init__(self, name: str) -> None:
        self.threads = WorkerThreads(name, _MAX_WAITING_CALLS)
        self.permits = asyncio.Semaphore(_MAX_WAITING_CALLS)


class AsyncCacheClient:
    """One per allocation path. ``threads`` runs the calls that return at once. ``turnover``: of this path's leases.

    Calls that may wait use separate threads, so a release never queues behind the wait that it ends. Waits for space
    and waits for data also have separate threads. A request waiting for data holds leases, and a request waiting for
    space may need the space of those leases.
    """

    def __init__(
        self,
        client: MediaCacheClient,
        threads: WorkerThreads,
        metrics: MetricsClient,
        alloc_version: AllocVersion,
        turnover: Turnover,
    ) -> None:
        self._client = client
        self._turnover = turnover
        self._threads = threads
        self._space_threads = _WaitingThreads(f"lease-space-{alloc_version}")
        self._data_threads = _WaitingThreads(f"lease-data-{alloc_version}")
        self._metrics = metrics
        self._alloc_version = alloc_version
        self._num_waiting = 0
        self._late_releases = LateReleases(self.release_now)
        self._unsure: set[str] = set()
        """Requests with an allocation that failed, and that a server which did not answer may still carry out."""

    async def alloc(
        self, request_id: str, items: Sequence[AllocItem], deadline_s: float, on_immediate: Callable[[Records], Records]
    ) -> Records:
        """MediaCacheClient.alloc. Uses a waiting thread only if there is no space now.

        If there is space now, ``on_immediate`` processes the records in the same thread and its result is returned.
        It is not called after a wait: a request that is cancelled during the wait is released while the thread still
        runs, so that thread must not write. Raises Unavailable when no space becomes free before ``deadline_s``.
        """

        def call(wait_s: float) -> tuple[Records, float]:
            started_s = time.monotonic()
            return self._client.alloc(request_id, items, wait_s=wait_s), time.monotonic() - started_s

        def call_now() -> tuple[Records, float, Records]:
            records, rpc_s = call(0.0)
            return records, rpc_s, on_immediate(records)

        try:
            try:
                records, rpc_s, result = await self._threads.run(call_now)
            except Overloaded:
                records, rpc_s = await self._alloc_waiting(request_id, deadline_s, call)
                result = records
        except Unavailable:
            if self._client.is_silent:
                self._unsure.add(request_id)
            raise
        self._metrics.add("mm_alloc_rpc_seconds", rpc_s, self._alloc_version)
        for state, count in Counter(record.state for record in records).items():
            self._metrics.add("mm_items", count, state, self._alloc_version)
        return result

    async def wait_for_data(self, request_id: str, item_ids: Sequence[int], deadline_s: float) -> Sequence[ItemState]:
        """States of items that other requests write, once one of them changes or ``deadline_s`` has passed.

        Raises Unavailable when no waiting thread became free before ``deadline_s``.
        """
        try:
            return await self._run_waiting(
                self._data_threads,
                request_id,
                deadline_s,
                lambda wait_s: self._client.get_items_data(request_id, item_ids, wait_s=wait_s),
            )
        except TimeoutError:
            raise Unavailable(
                "too many requests wait for images that others write",
                retry_after_s=self._turnover.seconds_until_free(),
            ) from None

    async def set_names(self, images: Mapping[bytes, NamedImage]) -> None:
        """MediaCacheClient.set_names."""
        if images:
            await self._threads.run(lambda: self._client.set_names(images))

    async def get_names(self, names: Sequence[bytes]) -> Sequence[NamedImage | None]:
        """MediaCacheClient.get_names."""
        return await self._threads.run(lambda: self._client.get_names(names))

    async def look_up(self, items: Sequence[AllocItem]) -> Sequence[StoredImage]:
        """MediaCacheClient.look_up."""
        return await self._threads.run(lambda: self._client.look_up(items))

    async def release(self, request_id: str) -> None:
        """End the leases of a request that makes no further calls. Idempotent.

        If the cache server is gone, so are the leases. If it does not answer, they are released once it does.
        """
        unsure = request_id in self._unsure
        self._unsure.discard(request_id)
        if self._client.is_silent:
            self._late_releases.add(request_id)
            return
        try:
            await self.release_now(request_id)
        except Unavailable:
            logger.info("request %s: the cache server has not answered the release of its leases", request_id)
            self._late_releases.add(request_id)
        else:
            if unsure:
                self._late_releases.add(request_id, answered=True)

    async def release_now(self, request_id: str) -> None:
        """End the request's leases. Idempotent. Raises Unavailable if the cache server is gone or does not answer."""
        await self._threads.run(lambda: self._client.release(request_id))

    async def aclose(self) -> None:
        """Close the connections and the waiting threads. Remaining leases end with the connections."""
        await self._late_releases.aclose()
        with suppress(Unavailable):
            await self._threads.run(self._client.unregister)
        await self._threads.run(self._client.close)
        self._space_threads.threads.close()
        self._data_threads.threads.close()

    async def _alloc_waiting(self, request_id: str, deadline_s: float, call: Callable[[float], B]) -> B:
        self._count_waiting(1)
        try:
            return await self._run_waiting(self._space_threads, request_id, deadline_s, call)
        except (Overloaded, TimeoutError):
            raise Unavailable(
                "no space for this request's images became free in time (--data-budget-mb, --mm-cache-gb)",
                retry_after_s=self._turnover.seconds_until_free(self._num_waiting),
            ) from None
        finally:
            self._count_waiting(-1)

    def _count_waiting(self, change: int) -> None:
        """Includes requests that still wait for a thread; the cache server does not know of those yet."""
        self._num_waiting += change
        self._metrics.add("mm_alloc_waiting", self._num_waiting, self._alloc_version)

    async def _run_waiting(
        self, waiting: _WaitingThreads, request_id: str, deadline_s: float, call: Callable[[float], B]
    ) -> B:
        """Run a call that may wait in the server; ``call`` gets the seconds that are left. On cancellation, release
        the request so that the server ends the wait. Raises TimeoutError when no thread becomes free in time."""
        async with asyncio.timeout(_left_s(deadline_s)) as queue_timeout:
            await waiting.permits.acquire()
            queue_timeout.reschedule(None)
        try:
            running = asyncio.ensure_future(waiting.threads.run(lambda: call(_left_s(deadline_s))))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                await to_completion(self._release_until_done(request_id, running))
                raise
            finally:
                del running  # its exception refers to this frame, so the frame must not refer to it
        finally:
            waiting.permits.release()

    async def _release_until_done(self, request_id: str, running: asyncio.Future[B]) -> None:
        """Release repeatedly until the call returns. The release uses another connection and may reach the server
        before the call does; it then ends nothing, and the server cannot tell this from a request without leases."""
        while not running.done():
            await self.release(request_id)
            await asyncio.wait([running], timeout=_RELEASE_RETRY_S)
        running.exception()  # retrieved, so that asyncio does not log it as never retrieved


def _left_s(deadline_s: float) -> float:
    return max(0.0, deadline_s - time.monotonic())
