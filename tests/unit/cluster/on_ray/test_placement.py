"""Where a front on Ray sends requests while replicas keep silent. A handle stands in for Ray's; the order is real."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from mmserve.cluster.front.metrics import FrontMetrics
from mmserve.cluster.on_ray.asked import Asked, ReplicaSilent
from mmserve.cluster.on_ray.known import KnownReplicas
from mmserve.cluster.on_ray.placement import RayPlacement
from mmserve.cluster.scale.policy import Choice, Want
from mmserve.cluster.scale.reports import Holdings, Load

_WANT = Want(pictures=(7,), tokens=10)


class _Handle:
    """Takes the first replica that is offered, as Ray does. Those in ``silent`` do not confirm, the first so often."""

    def __init__(self, known: KnownReplicas, silent: Collection[str] = ()) -> None:
        self.known, self.silent = known, silent
        self.chosen: list[str] = []
        self.given_up = 0
        self.wakes_after = 1_000
        self.changed = asyncio.Event()

    def options(self, method_name: str) -> _Handle:
        return self

    @contextlib.asynccontextmanager
    async def choose_replica(self, asked: Asked) -> AsyncIterator[Any]:
        while (first := next(self.known.ranked(asked), None)) is None:
            await self.changed.wait()
        self.chosen.append(first)
        if first in self.silent and len(self.chosen) <= self.wakes_after:
            try:
                await asyncio.Event().wait()
            finally:
                self.given_up += 1
        yield SimpleNamespace(replica_metadata=_metadata(first)[first])

    def dispatch(self, selection: Any) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


def _metadata(*names: str) -> dict[str, dict[str, str]]:
    return {name: {"id": name, "url": f"http://{name}:1", "reports": ""} for name in names}


def _placement(
    *names: str, silent: Collection[str] = (), confirm_s: float = 0.1
) -> tuple[RayPlacement, _Handle, FrontMetrics]:
    known = KnownReplicas()
    known.set(_metadata(*names))
    handle, metrics = _Handle(known, silent), FrontMetrics()
    return RayPlacement(handle, known, metrics, (), _are_starting, confirm_s), handle, metrics


async def _are_starting() -> bool:
    return False


async def _sent(placement: RayPlacement, failed: Collection[str] = ()) -> str:
    async with asyncio.timeout(20), placement.reserved(_WANT, failed) as (replica, _):
        return replica


def test_a_request_leaves_a_replica_that_does_not_confirm_and_those_after_it_avoid_that_one() -> None:
    async def test() -> None:
        placement, handle, metrics = _placement("a", "b", silent=("a",))
        for name in "ab":
            handle.known.load(name, Load(encode_s=1.0), 0.0)
        handle.known.hold("a", Holdings("pictures", 0, 0, (7,), snapshot=True))
        assert [await _sent(placement) for _ in range(3)] == ["b", "b", "b"]
        assert handle.chosen == ["a", "b", "b", "b"]
        assert handle.given_up == 1
        assert metrics.value("failed_attempts", "a") == 1
        assert sum(handle.known.cluster.decisions.values()) == 3, "what was not sent there does not count"
        assert sum(metrics.value("decisions", reason) for reason in ("held", "owner", "spread", "only")) == 3

    asyncio.run(test())


def test_replicas_that_are_all_silent_are_asked_in_turn_until_one_confirms() -> None:
    async def test() -> None:
        placement, handle, _ = _placement("a", "b", silent={"a", "b"}, confirm_s=0.01)
        handle.wakes_after = 6
        assert await _sent(placement, failed=("b",)) in "ab"
        assert "".join(handle.chosen[:6]) == "ababab", "one that has failed this request comes last"
        assert len(handle.chosen) == 7

    asyncio.run(test())


def test_without_replicas_a_request_waits_for_one_however_long_it_takes() -> None:
    async def test() -> None:
        placement, handle, metrics = _placement(confirm_s=0.01)
        waiting = asyncio.create_task(_sent(placement))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        assert not handle.chosen
        handle.known.set(_metadata("a"))
        handle.changed.set()
        assert await waiting == "a"
        assert metrics.value("failed_attempts", "a") == 0

    asyncio.run(test())


async def _offered(asked: Asked, then: Callable[[], Awaitable[object]]) -> None:
    async with asked.limited():
        asked.offer(Choice("a", 0.0, 0.0, "only"))
        await then()


def test_a_request_waits_for_room_without_a_limit_and_for_a_replica_with_one() -> None:
    async def test() -> None:
        async def full() -> None:
            asked.offered_all()
            await asyncio.sleep(0.1)

        asked = Asked(_WANT, {}, within_s=0.01)
        await _offered(asked, full)
        with pytest.raises(ReplicaSilent, match="a is silent"):
            await _offered(asked, asyncio.Event().wait)
        await asyncio.to_thread(asked.offer, Choice("b", 0.0, 0.0, "only"))  # Ray is still at it: in vain
        await asyncio.sleep(0.1)

    asyncio.run(test())


def test_a_time_limit_of_rays_own_is_not_taken_for_a_silent_replica() -> None:
    async def test() -> None:
        async def fail() -> None:
            raise TimeoutError("Ray's")

        with pytest.raises(TimeoutError, match="Ray's"):
            await _offered(Asked(_WANT, {}, within_s=60.0), fail)

    asyncio.run(test())


def test_there_are_others_while_one_is_known_or_starts() -> None:
    async def test() -> None:
        known, starting = KnownReplicas(), asyncio.Event()

        async def are_starting() -> bool:
            return starting.is_set()

        placement = RayPlacement(_Handle(known), known, FrontMetrics(), (), are_starting)
        known.set(_metadata("a", "b"))
        assert await placement.has_others({"a"})
        assert not await placement.has_others({"a", "b", "one that has left"})
        starting.set()
        assert await placement.has_others({"a", "b"})

    asyncio.run(test())
