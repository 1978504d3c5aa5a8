from __future__ import annotations

import asyncio

import pytest

from mmserve.cluster.front.metrics import FrontMetrics
from mmserve.cluster.front.turns import Turns


def test_a_turn_ends_once_with_its_context_by_itself_or_when_told() -> None:
    async def test() -> None:
        turns = Turns(1, 0.05, metrics := FrontMetrics())
        with await turns.take() as turn:
            waiting = asyncio.create_task(turns.take())
            await asyncio.sleep(0)
            assert metrics.value("resumes_waiting") == 1
            turn.end()
            second = await waiting  # before the context of the first has ended
        assert metrics.value("resumes_waiting") == 0
        async with asyncio.timeout(10):
            third = await turns.take()  # the second has taken too long
        second.end()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await turns.take()  # its end is no second place
        assert metrics.value("resumes_waiting") == 0
        third.end()

    asyncio.run(test())
