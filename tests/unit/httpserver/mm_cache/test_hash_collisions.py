"""Different images with one content key: each request gets its own image, as long as the bytes can be compared."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver.call import AllocVersion, LeasedItem, MediaItem
from mmserve.ipc.arena import Arena
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.alloc_paths import ALLOC_VERSIONS, BothAllocPaths

SAME_KEY = b"the same for all"


def item(number: int, nbytes: int = 3000) -> MediaItem:
    """An image whose content key is the same as every other image's."""
    return MediaItem(bytes([number]) * nbytes, 40, 30, SAME_KEY, f"part{number}")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return deployment_of(write_chat_model(tmp_path_factory.mktemp("llava")))


@pytest.fixture
def paths(deployment: Deployment) -> Iterator[BothAllocPaths]:
    arena = Arena.create(1 << 18)
    yield BothAllocPaths(deployment, arena)
    arena.close()


@pytest.fixture(params=ALLOC_VERSIONS)
def alloc_version(request: pytest.FixtureRequest) -> Any:
    return request.param


async def hold(
    paths: BothAllocPaths, alloc_version: AllocVersion, name: str, items: list[MediaItem]
) -> list[LeasedItem]:
    """Lease, and check that the leased bytes are those of ``items``."""
    async with paths.paths[alloc_version].leases.hold(name, items) as leased:
        assert paths.bytes_held(leased) == [item.data for item in items]
        return leased


def collisions(paths: BothAllocPaths, alloc_version: AllocVersion) -> float:
    return paths.samples.total("mm_hash_collisions", alloc_version)


def test_requests_one_after_another(paths: BothAllocPaths, alloc_version: AllocVersion) -> None:
    async def scenario() -> None:
        (first,) = await hold(paths, alloc_version, "a", [item(1)])
        (second,) = await hold(paths, alloc_version, "b", [item(2)])
        (again,) = await hold(paths, alloc_version, "c", [item(2)])
        (unharmed,) = await hold(paths, alloc_version, "d", [item(1)])
        assert first.record.token_start == unharmed.record.token_start
        assert second.record.token_start == again.record.token_start
        assert first.record.token_start != second.record.token_start
        assert collisions(paths, alloc_version) == 2
        assert paths.is_clean()

    paths.run(scenario)


def test_images_of_one_request(paths: BothAllocPaths, alloc_version: AllocVersion) -> None:
    async def scenario() -> None:
        numbers = (1, 2, 1, 3, 2)
        leased = await hold(paths, alloc_version, "a", [item(number) for number in numbers])
        starts = [one.record.token_start for one in leased]
        assert len(set(starts)) == 3
        assert starts[0] == starts[2]
        assert starts[1] == starts[4]
        assert paths.is_clean()

    paths.run(scenario)


@pytest.mark.parametrize("other", ALLOC_VERSIONS)
def test_a_request_that_waited_for_the_bytes_of_another(
    paths: BothAllocPaths, alloc_version: AllocVersion, other: AllocVersion
) -> None:
    """The bytes are compared when they have been written."""
    has_waited, writes = threading.Event(), threading.Event()

    def at_call(name: str) -> None:
        if name == "get_items_data":
            has_waited.set()
        elif name == "set_items_data":
            writes.set()
            assert has_waited.wait(20)

    async def scenario() -> None:
        first = asyncio.create_task(hold(paths, other, "a", [item(1)]))
        await asyncio.to_thread(writes.wait, 20)
        second = asyncio.create_task(hold(paths, alloc_version, "b", [item(2)]))
        await asyncio.gather(first, second)
        assert collisions(paths, alloc_version) == 1
        assert paths.is_clean()

    for pool in paths.pools.values():
        pool.at_call = at_call
    paths.run(scenario)


def test_bytes_that_were_evicted_after_encoding_are_not_compared(
    paths: BothAllocPaths, alloc_version: AllocVersion
) -> None:
    async def scenario() -> None:
        (first,) = await hold(paths, alloc_version, "a", [item(1)])
        paths.table.get_embed("visual", [first.record.item_id])
        paths.table.set_embed("visual", [first.record.item_id], [True])
        async with paths.paths[alloc_version].leases.hold("b", [item(2)]) as (second,):
            assert second.record.state == "hit"
        assert collisions(paths, alloc_version) == 0

    paths.run(scenario)


def test_same_bytes_are_no_collision(paths: BothAllocPaths, alloc_version: AllocVersion) -> None:
    async def scenario() -> None:
        await hold(paths, alloc_version, "a", [item(1), item(1)])
        await hold(paths, alloc_version, "b", [item(1)])
        assert collisions(paths, alloc_version) == 0
        assert paths.samples.names().count("mm_compare_seconds") == 2

    paths.run(scenario)
