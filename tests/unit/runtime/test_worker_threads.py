"""Worker threads: batching, order of results, cancellation, errors and closing."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.runtime.errors import Unavailable
from mmserve.runtime.worker_threads import MIN_BATCH_NBYTES, WorkerThreads, batches
from tests.fakes.processes.shortages import no_more_threads


@pytest.fixture(params=[True, False], ids=["concurrent", "sequential"])
def threads(request: pytest.FixtureRequest) -> Iterator[WorkerThreads]:
    threads = WorkerThreads("test", 3, concurrent=request.param)
    yield threads
    threads.close()


@given(st.lists(st.integers(0, 4 * MIN_BATCH_NBYTES), max_size=40), st.integers(1, 8))
def test_batches_are_few_and_keep_the_order(sizes: list[int], threads: int) -> None:
    found = batches(range(len(sizes)), sizes, threads)
    assert [job for batch in found for job in batch] == list(range(len(sizes)))
    assert len(found) <= threads
    assert all(found)


def test_small_jobs_share_a_batch() -> None:
    assert batches(range(128), [1000] * 128, 4) == [list(range(128))]
    assert len(batches(range(8), [MIN_BATCH_NBYTES] * 8, 4)) == 4
    few_large = [5 * MIN_BATCH_NBYTES] * 4
    assert batches(range(4), few_large, 4) == [[0], [1], [2], [3]]
    assert batches(range(4), few_large, 2) == [[0, 1], [2, 3]]
    assert [0] in batches(range(9), [20 * MIN_BATCH_NBYTES] + [10] * 8, 4)


def test_a_cancelled_caller_resumes_only_after_its_thread_has_returned(threads: WorkerThreads) -> None:
    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        started = asyncio.Event()
        events: list[str] = []

        proceed = threading.Event()

        def work() -> None:
            loop.call_soon_threadsafe(started.set)
            proceed.wait(10)
            events.append("returned")

        task = asyncio.create_task(threads.run(work))
        await started.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        proceed.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        events.append("cancelled")
        return events

    assert asyncio.run(run()) == ["returned", "cancelled"]


def test_results_are_in_the_order_of_the_jobs(threads: WorkerThreads) -> None:
    sizes = [MIN_BATCH_NBYTES] * 20
    assert asyncio.run(threads.map(lambda job: job * job, range(20), sizes)) == [job * job for job in range(20)]
    assert asyncio.run(threads.map(lambda job: job, [], [])) == []


def test_jobs_run_at_the_same_time() -> None:
    """Each job waits until all have started, so a single thread would time out."""
    threads, together = WorkerThreads("test", 3), threading.Barrier(3)
    places = asyncio.run(threads.map(lambda job: together.wait(20), range(3), [MIN_BATCH_NBYTES] * 3))
    assert sorted(places) == [0, 1, 2]
    threads.close()


def test_jobs_run_one_after_another_if_not_concurrent() -> None:
    threads, free = WorkerThreads("test", 3, concurrent=False), threading.Lock()

    def work(job: int) -> bool:
        if not free.acquire(blocking=False):
            return False
        threading.Event().wait(0.01)
        free.release()
        return True

    assert all(asyncio.run(threads.map(work, range(6), [MIN_BATCH_NBYTES] * 6)))
    threads.close()


def test_the_first_error_is_raised_when_all_have_returned(threads: WorkerThreads) -> None:
    returned: list[int] = []

    def work(job: int) -> None:
        if job in (1, 2):
            raise ValueError(job)
        returned.append(job)

    with pytest.raises(ValueError, match="1"):
        asyncio.run(threads.map(work, range(3), [MIN_BATCH_NBYTES] * 3))
    assert returned == [0]


def test_threads_keep_no_reference_to_a_finished_job(threads: WorkerThreads) -> None:
    class Picture:
        pass

    async def run() -> weakref.ref[Picture]:
        picture = Picture()
        assert await threads.run(lambda: picture) is picture
        await threads.run(int)
        return weakref.ref(picture)

    gone = asyncio.run(run())
    gc.collect()
    assert gone() is None


def test_closed_threads_finish_accepted_work_and_refuse_more(threads: WorkerThreads) -> None:
    async def run() -> None:
        proceed = threading.Event()
        task = asyncio.create_task(threads.run(lambda: proceed.wait(10)))
        await asyncio.sleep(0)
        threads.close()
        with pytest.raises(RuntimeError, match="closed"):
            await threads.run(int)
        proceed.set()
        assert await task

    asyncio.run(run())


def test_a_call_fails_with_503_if_no_thread_can_be_started_and_later_ones_succeed(threads: WorkerThreads) -> None:
    async def run() -> None:
        with no_more_threads(), pytest.raises(Unavailable, match="out of threads"):
            await threads.run(lambda: 1)
        assert await threads.run(lambda: 2) == 2

    asyncio.run(run())


def test_fewer_threads_than_wanted_do_all_the_work(threads: WorkerThreads) -> None:
    async def run() -> list[int]:
        await threads.run(lambda: 0)
        with no_more_threads():
            return await threads.map(lambda job: job + 1, range(3), [MIN_BATCH_NBYTES] * 3)

    assert asyncio.run(run()) == [1, 2, 3]
