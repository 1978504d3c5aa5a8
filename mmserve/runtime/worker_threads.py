"""Blocking work in threads, never abandoned: whoever awaits it goes on only after its thread has returned.

Knows nothing of the work but its size in bytes. Many tiny jobs share a task, so that handing a job to a thread (tens
of microseconds) is not what they cost.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")

MIN_BATCH_NBYTES = 4 << 20
"""Hashing and copying run at several GB/s: below this, handing over to another thread and back, and threads that take
the interpreter's lock from each other between small items, cost more than a second core gives."""


class Threads:
    """A pool. ``concurrent``: ``map`` spreads jobs over it; otherwise it runs them one after another, a task each.

    Not concurrent.futures': its way to a thread and back takes twice as long (50 us here, of about 700 for a request).
    """

    def __init__(self, name: str, count: int, *, concurrent: bool = True) -> None:
        self._name = name
        self._count = count
        self._concurrent = concurrent
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = 0
        self._closed = False

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
        """Take nothing more; what runs or has been handed over ends by itself."""
        self._closed = True
        for _ in range(self._started):
            self._calls.put(None)

    async def _run_all(self, works: Sequence[Callable[[], B]]) -> list[B]:
        if not works:
            return []
        together = _Together(works, asyncio.get_running_loop())
        for index in range(len(works)):
            self._hand_over(partial(together.run, index))
        return await together.results()

    def _hand_over(self, call: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError(f"the threads {self._name} are closed")
        self._calls.put(call)
        if self._started < self._count:
            threading.Thread(target=_run_calls, args=(self._calls,), name=self._name, daemon=True).start()
            self._started += 1


class _Together(Generic[B]):
    """Works that are awaited together, each run once by some thread."""

    def __init__(self, works: Sequence[Callable[[], B]], loop: asyncio.AbstractEventLoop) -> None:
        self._works = works
        self._loop = loop
        self._all_done = asyncio.Event()
        self._left = itertools.count(len(works) - 1, -1)
        self._results: dict[int, B] = {}
        self._errors: dict[int, BaseException] = {}

    def run(self, index: int) -> None:
        """In a thread."""
        try:
            self._results[index] = self._works[index]()
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            self._errors[index] = error
        if next(self._left) == 0:
            with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._all_done.set)

    async def results(self) -> list[B]:
        """When all are done, come what may; only then is a cancellation passed on, or the first error raised."""
        cancelled = False
        while not self._all_done.is_set():
            try:
                await self._all_done.wait()
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        if self._errors:
            raise self._errors.pop(min(self._errors))
        return [self._results[index] for index in range(len(self._works))]


def _run_calls(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # and all it holds, before waiting for the next


def _bound(work: Callable[[A], B], jobs: Sequence[A]) -> Callable[[], list[B]]:
    return lambda: [work(job) for job in jobs]


def batches(jobs: Sequence[A], nbytes: Sequence[int], threads: int) -> list[list[A]]:
    """``jobs`` in order, cut into runs of about equal bytes: as many as threads at most, fewer when they are small."""
    total, done = sum(nbytes), 0
    count = min(threads, total // MIN_BATCH_NBYTES)
    if count <= 1:
        return [list(jobs)] if jobs else []
    runs: list[list[A]] = [[] for _ in range(count)]
    for job, size in zip(jobs, nbytes, strict=True):
        # The run in which the middle of the job falls.
        runs[min(count - 1, (2 * done + size) * count // (2 * total))].append(job)
        done += size
    return [run for run in runs if run]
