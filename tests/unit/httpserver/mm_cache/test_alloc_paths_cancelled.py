"""Requests of both allocation paths, cancelled at any await: no lease remains, and the next request works."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import NamedTuple

import pybase64
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mmserve.cache_server.entries import Lease
from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver.call import AllocVersion, MediaRef
from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.cache import AllocItem
from mmserve.runtime.errors import Overloaded, TooLarge, Unavailable
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.alloc_paths import ALLOC_VERSIONS, BothAllocPaths
from tests.fakes.pictures.cache_in_process import in_process_client
from tests.fakes.pictures.media import png
from tests.fakes.processes.cancelling import CancelledAt

PICTURES = tuple(png(seed, width=20 + 10 * seed, height=30) for seed in range(3))
REFS = tuple(MediaRef(f"data:;base64,{pybase64.b64encode_as_string(data)}", "part") for data in PICTURES)
ROWS_NBYTES = 4 * 8 * 4
MOST_AWAITS = 20
"""More awaits than most requests have."""


class RequestPlan(NamedTuple):
    """One request: its allocation path, its pictures, the await at which it is cancelled, and how many times."""

    alloc_version: AllocVersion
    pictures: list[int]
    cancelled_at: int
    times: int


request_plans = st.builds(
    RequestPlan,
    st.sampled_from(ALLOC_VERSIONS),
    st.lists(st.integers(0, 2), min_size=1, max_size=4),
    st.integers(1, MOST_AWAITS),
    st.integers(0, 3),
)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return deployment_of(write_chat_model(tmp_path_factory.mktemp("llava")))


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    """Has room for the two largest pictures, not for all three."""
    nbytes = sum(extent_nbytes(len(data)) + extent_nbytes(ROWS_NBYTES) for data in PICTURES[1:])
    arena = Arena.create(nbytes)
    yield arena
    arena.close()


async def request(paths: BothAllocPaths, alloc_version: AllocVersion, name: str, pictures: list[int]) -> None:
    """Reads, leases, checks the stored bytes and releases, as the request path does."""
    path = paths.paths[alloc_version]
    items = await path.media.read([REFS[number] for number in pictures], "")
    async with path.leases.hold(name, items) as leased:
        await asyncio.sleep(0)
        assert paths.bytes_held(leased) == [PICTURES[number] for number in pictures]


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(request_plans, min_size=1, max_size=4))
@example([RequestPlan("v1", [0, 1], at, 1) for at in range(1, MOST_AWAITS + 1)])
@example([RequestPlan("v2", [0, 1], at, 1) for at in range(1, MOST_AWAITS + 1)])
@example([RequestPlan(ALLOC_VERSIONS[at % 2], [at % 3, (at + 1) % 3], at, 2) for at in range(1, MOST_AWAITS + 1)])
def test_cancelled_requests_leave_no_lease(deployment: Deployment, arena: Arena, plans: list[RequestPlan]) -> None:
    paths = BothAllocPaths(deployment, arena, timeout_s=0.05)

    async def scenario() -> None:
        tasks = [
            asyncio.create_task(
                CancelledAt(
                    request(paths, plan.alloc_version, f"r{number}", plan.pictures), plan.cancelled_at, plan.times
                )
            )
            for number, plan in enumerate(plans)
        ]
        await asyncio.wait(tasks)
        for task in tasks:
            # A request for all three pictures, or one that waited too long, is refused.
            assert task.cancelled() or isinstance(task.exception(), Overloaded | TooLarge | Unavailable | None)
        assert paths.is_clean()
        for alloc_version in ALLOC_VERSIONS:
            for number in range(len(PICTURES)):
                await request(paths, alloc_version, "next", [number])
        assert paths.is_clean()

    paths.run(scenario)


@pytest.mark.parametrize("alloc_version", ALLOC_VERSIONS)
@pytest.mark.parametrize("times", [1, 3])
def test_a_cancellation_at_each_await_leaves_no_lease(
    deployment: Deployment, arena: Arena, alloc_version: AllocVersion, times: int
) -> None:
    paths = BothAllocPaths(deployment, arena)

    async def scenario() -> None:
        for at in itertools.count(1):
            work = CancelledAt(request(paths, alloc_version, "r", [0, 1]), at, times)
            task = asyncio.create_task(work)
            await asyncio.wait([task])
            assert paths.is_clean()
            if not work.reached:
                break
            assert task.cancelled() or at > 5
        assert task.exception() is None
        assert at > 5

    paths.run(scenario)


@pytest.mark.parametrize("alloc_version", ALLOC_VERSIONS)
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("waits_for", ["bytes", "space"])
def test_a_cancelled_request_stops_waiting(
    deployment: Deployment, arena: Arena, alloc_version: AllocVersion, times: int, waits_for: str
) -> None:
    """Neither its worker nor the server's queue keeps it, although the bytes or the space never came."""
    paths = BothAllocPaths(deployment, arena, timeout_s=1000.0)
    other, _ = in_process_client(paths.table, "v2")

    async def scenario() -> None:
        (item,) = await paths.paths["v2"].media.read([REFS[1]], "")
        sizes = (len(item.data), ROWS_NBYTES) if waits_for == "bytes" else (arena.nbytes - 2 * extent_nbytes(200), 200)
        (record,) = other.alloc("other", [AllocItem(item.key, 4, *sizes)], wait_s=0)
        task = asyncio.create_task(request(paths, alloc_version, "r", [1]))
        while not paths.has_waited(alloc_version):  # noqa: ASYNC110 - the table has no event for this
            await asyncio.sleep(0.001)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await asyncio.wait([task])
        assert task.cancelled()
        assert other.get_items_data("other", [record.item_id], wait_s=0) == ("write",)
        snapshot = paths.table.snapshot()
        assert (snapshot.num_leases, snapshot.num_waiting) == (1, 0)
        other.release("other")
        await request(paths, alloc_version, "next", [1])
        assert paths.is_clean()

    paths.run(scenario)


@pytest.mark.parametrize(("alloc_version", "late"), [("v2", "alloc"), ("v1", "alloc"), ("v1", "await_alloc")])
def test_a_wait_for_space_that_starts_after_its_release_ends_too(
    deployment: Deployment, arena: Arena, monkeypatch: pytest.MonkeyPatch, alloc_version: AllocVersion, late: str
) -> None:
    """The release of a cancelled request reaches the server before the alloc call that it must end."""
    paths = BothAllocPaths(deployment, arena, timeout_s=1000.0)
    other, _ = in_process_client(paths.table, "v2")
    other.alloc("other", [AllocItem(b"all", 4, arena.nbytes - 2 * extent_nbytes(200), 200)], wait_s=0)
    late_call_started, release_answered = threading.Event(), threading.Event()
    table_release = paths.table.release

    def release(lease: Lease) -> None:
        table_release(lease)
        if late_call_started.is_set():
            release_answered.set()

    def at_call(name: str) -> None:
        if name == late and threading.current_thread().name.startswith("lease-space"):
            late_call_started.set()
            assert release_answered.wait(30)

    monkeypatch.setattr(paths.table, "release", release)
    paths.pools[alloc_version].at_call = at_call

    async def scenario() -> None:
        task = asyncio.create_task(request(paths, alloc_version, "r", [1]))
        assert await asyncio.to_thread(late_call_started.wait, 30)
        task.cancel()
        try:
            await asyncio.wait([task], timeout=30)
            assert task.cancelled(), "it still waits for space after its cancellation"
        finally:
            other.release("other")
            await asyncio.wait([task])
        assert paths.is_clean()

    paths.run(scenario)
