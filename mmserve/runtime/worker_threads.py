"""Runs blocking work in threads for an event loop. A caller resumes only after its work has returned.

Small jobs are grouped by their size in bytes, because handing work to a thread costs tens of microseconds.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from mmserve.runtime.shortage import out_of

A = TypeVar("A")
B = TypeVar("B")

MIN_BATCH_NBYTES = 4 << 20
"""Work below this size is not split. Hashing and copying run at several GB/s, so for less than this the hand-over and
the competition for the GIL cost more than a second core gains."""


class WorkerThreads:
    """A pool of up to ``count`` threads. Each call starts one more, until there are ``count``.

    ``concurrent`` is about ``map`` alone: True spreads the jobs of one ``map`` over the threads, False runs them one
    after another. Calls of different requests run at the same time in both cases, in up to ``count`` threads.

    Handing over a call and its result takes about 50 us, and twice as long with a ThreadPoolExecutor. A request takes
    about 700 us in all.
    """

    def __init__(self, name: str, count: int, *, concurrent: bool = True) -> None:
        self._name = name
        self._count = count
        self._concurrent = concurrent
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = 0
        self._closed = False

    async def run(self, work: Callable[[], B]) -> B:
        """Run one blocking call. If the caller is cancelled, CancelledError is raised after the call has returned.

        Raises Unavailable if not even one thread can be started.
        """
        return (await self._run_all([work]))[0]

    async def map(self, work: Callable[[A], B], jobs: Sequence[A], nbytes: Sequence[int]) -> list[B]:
        """Apply ``work`` to all jobs; results are in the order of the jobs. nbytes[i] estimates the bytes of job i.

        If jobs raise, the exception of the first of them is raised after all jobs have returned.
        """
        if not self._concurrent:
            parts = [await self.run(_bound(work, [job])) for job in jobs]
        else:
            parts = await self._run_all([_bound(work, batch) for batch in batches(jobs, nbytes, self._count)])
        return [result for part in parts for result in part]

    def close(self) -> None:
        """Accept no more work. Work that was accepted before still runs; this does not wait for it."""
        self._closed = True
        for _ in range(self._started):
            self._calls.put(None)

    async def _run_all(self, works: Sequence[Callable[[], B]]) -> list[B]:
        if not works:
            return []
        group = _CallGroup(works, asyncio.get_running_loop())
        for index in range(len(works)):
            self._submit(partial(copy_context().run, group.run, index))
        return await group.results()

    def _submit(self, call: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError(f"the threads {self._name} are closed")
        if self._started < self._count:
            try:
                threading.Thread(target=_run_calls, args=(self._calls,), name=self._name, daemon=True).start()
                self._started += 1
            except RuntimeError as error:  # the machine, or the control group, has no thread left
                if not self._started:
                    raise out_of("threads") from error
        self._calls.put(call)


class _CallGroup(Generic[B]):
    """Calls that are awaited together. Each runs once, in any thread."""

    def __init__(self, works: Sequence[Callable[[], B]], loop: asyncio.AbstractEventLoop) -> None:
        self._works = works
        self._loop = loop
        self._all_done = asyncio.Event()
        self._num_left = itertools.count(len(works) - 1, -1)  # next() is atomic under the GIL
        self._results: dict[int, B] = {}
        self._errors: dict[int, BaseException] = {}

    def run(self, index: int) -> None:
        """Run call ``index``. Called in a worker thread."""
        try:
            self._results[index] = self._works[index]()
        except BaseException as error:  # noqa: BLE001 - raised by results()
            self._errors[index] = error
        if next(self._num_left) == 0:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._all_done.set)

    async def results(self) -> list[B]:
        """Wait until all calls have returned, then raise a cancellation or the first error, or return the results."""
        cancelled = False
        while not self._all_done.is_set():
            try:
                await self._all_done.wait()
            except asyncio.CancelledError:
                cancelled = True
        # The thread that was last still refers to this group for a moment, so the group must not refer to the rest.
        results, errors, self._results, self._errors, self._works = self._results, self._errors, {}, {}, ()
        if cancelled:
            raise asyncio.CancelledError
        if errors:
            raise errors.pop(min(errors))
        return [results[index] for index in range(len(results))]


def _run_calls(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # frees its arguments and result before waiting for the next call


def _bound(work: Callable[[A], B], jobs: Sequence[A]) -> Callable[[], list[B]]:
    return lambda: [work(job) for job in jobs]


def batches(jobs: Sequence[A], nbytes: Sequence[int], threads: int) -> list[list[A]]:
    """Split ``jobs``, in order, into at most ``threads`` batches of about equal bytes; fewer if the jobs are small."""
    total, done = sum(nbytes), 0
    count = min(threads, total // MIN_BATCH_NBYTES)
    if count <= 1:
        return [list(jobs)] if jobs else []
    split: list[list[A]] = [[] for _ in range(count)]
    for job, size in zip(jobs, nbytes, strict=True):
        # A job belongs to the batch that contains its middle byte.
        split[min(count - 1, (2 * done + size) * count // (2 * total))].append(job)
        done += size
    return [batch for batch in split if batch]
