"""Asynchronous work for callers without a loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from mmserve.client.loop_thread import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("test")
    yield thread
    thread.close()


async def _double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


async def _fail() -> None:
    raise ValueError("no")


def test_results_and_errors_reach_the_caller(thread: LoopThread) -> None:
    assert thread.run(_double(4)) == 8
    with pytest.raises(ValueError, match="no"):
        thread.run(_fail())


def test_a_running_loop_of_the_caller_does_not_matter(thread: LoopThread) -> None:
    async def notebook() -> int:
        return thread.run(_double(4))

    assert asyncio.run(notebook()) == 8


def test_closing_cancels_what_runs() -> None:
    thread = LoopThread("test")
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(True)

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        return task

    task = thread.run(begin())
    thread.close()
    assert ended
    assert task.cancelled()
