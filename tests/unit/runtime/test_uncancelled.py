"""Waiting that a cancellation does not interrupt."""

from __future__ import annotations

import asyncio

import pytest

from mmserve.runtime.uncancelled import to_completion


def test_the_work_ends_before_the_cancellation_is_raised() -> None:
    async def test() -> None:
        release, done = asyncio.Event(), []

        async def work() -> None:
            await release.wait()
            done.append(True)

        task = asyncio.create_task(to_completion(work()))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done

    asyncio.run(test())


def test_results_and_exceptions_are_passed_on() -> None:
    async def fails() -> None:
        raise KeyError("x")

    async def test() -> None:
        assert await to_completion(asyncio.sleep(0, 5)) == 5
        with pytest.raises(KeyError):
            await to_completion(fails())

    asyncio.run(test())
