"""Blocking work in threads, never abandoned: whoever awaits it goes on only after its thread has returned.

Knows nothing of the work but its size in bytes. Many tiny jobs share a task, so that handing a job to a thread (tens
of microseconds) is not what they cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

MIN_BATCH_NBYTES = 4 << 20
"""Hashing and copying run at several GB/s: below this, handing over to another thread and back, and threads that take
the interpreter's lock from each other between small items, cost more than a second core gives."""


class Threads:
    """A pool. ``concurrent``: ``map`` spreads jobs over it; otherwise it runs them one after another, a task each."""

    def __init__(self, name: str, count: int, *, concurrent: bool = True) -> None:
        self._count = count
        self._concurrent = concurrent
        self._pool = ThreadPoolExecutor(count, name)

    async def run(self, work: Callable[[], B]) -> B:
        """One blocking call. A cancelled caller gets its CancelledError when the call has returned, not before."""
        return (await self._run_all([work]))[0]

    async def map(self, work: Callable[[A], B], jobs: Sequence[A], nbytes: Sequence[int]) -> list[B]:
        """``work`` over ``jobs``, results in order; nbytes[i] is about how much job i has to go through.

        All have returned when the first exception (in the order of the jobs) is raised.
        """
        if not self._concurrent:
            parts = [await self.run(_bound(work, [job])) for job in jobs]
        else:
            parts = await self._run_all([_bound(work, batch) for batch in batches(jobs, nbytes, self._count)])
        return [result for part in parts for result in part]

    def close(self) -> None:
        """Start nothing more; what runs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run_all(self, works: Sequence[Callable[[], B]]) -> list[B]:
        loop = asyncio.get_running_loop()
        running = [loop.run_in_executor(self._pool, work) for work in works]
        if await _all_done(running):
            raise asyncio.CancelledError
        return [future.result() for future in running]


async def _all_done(running: Sequence[asyncio.Future[B]]) -> bool:
    """Wait for every future, come what may; True when the caller was cancelled meanwhile."""
    cancelled = False
    while pending := [future for future in running if not future.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError:
            cancelled = True
    for future in running:
        if not future.cancelled():
            future.exception()  # looked at, so that asyncio does not report those that nobody raises
    return cancelled


def _bound(work: Callable[[A], B], jobs: Sequence[A]) -> Callable[[], list[B]]:
    return lambda: [work(job) for job in jobs]


def batches(jobs: Sequence[A], nbytes: Sequence[int], threads: int) -> list[list[A]]:
    """``jobs`` in order, cut into runs of about equal bytes: as many as threads at most, fewer when they are small."""
    total, done = sum(nbytes), 0
    runs: list[list[A]] = [[] for _ in range(max(1, min(threads, total // MIN_BATCH_NBYTES)))]
    for job, size in zip(jobs, nbytes, strict=True):
        # The run in which the middle of the job falls.
        runs[min(len(runs) - 1, (2 * done + size) * len(runs) // max(1, 2 * total))].append(job)
        done += size
    return [run for run in runs if run]
