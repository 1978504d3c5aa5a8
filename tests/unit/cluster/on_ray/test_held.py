from __future__ import annotations

import asyncio

import pytest

from mmserve.cluster.on_ray.held import Heard, Held, until_over
from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.reports import Load


def test_a_request_that_nobody_ends_is_over_when_the_server_has_none() -> None:
    async def test() -> None:
        cluster, held = Cluster(), Held()
        cluster.set_replicas(["a"])
        heard = Heard(cluster, held.idle)
        old, young, cancelled = (asyncio.create_task(held.until_over(at_s)) for at_s in (0.0, 97.0, 0.0))
        await asyncio.sleep(0)
        assert len(held) == 3
        cancelled.cancel()
        heard.load("a", Load(in_flight=1), 100.0)
        await asyncio.sleep(0)
        assert not old.done()
        heard.load("a", Load(), 101.0)
        await asyncio.sleep(0)
        assert old.done()
        assert not young.done(), "it may be on its way"
        assert len(held) == 1
        heard.load("a", Load(), 103.0)
        await young
        assert cluster.reported_at_s("a") == 103.0

    asyncio.run(test())


def test_a_request_that_nobody_ends_at_a_server_that_is_never_idle_is_over_after_the_longest_time() -> None:
    async def test() -> None:
        held = Held(longest_s=0.0)
        await held.until_over(0.0)
        assert len(held) == 0

    asyncio.run(test())


def test_the_end_of_a_cancelled_request_is_waited_for() -> None:
    async def test() -> None:
        ended, failed, late = (asyncio.get_running_loop().create_future() for _ in range(3))
        ended.cancel()
        failed.set_exception(KeyError())
        assert await until_over(ended, 60, (KeyError,))
        assert await until_over(failed, 60, (KeyError,))
        assert not await until_over(late, 0.01, ())

    asyncio.run(test())


def test_a_client_that_leaves_meanwhile_ends_its_request() -> None:
    async def test() -> None:
        waiting = asyncio.create_task(until_over(asyncio.get_running_loop().create_future(), 60, ()))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(test())
