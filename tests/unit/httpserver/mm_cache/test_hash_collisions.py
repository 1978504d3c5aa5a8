"""Different images under one content key: both requests get their own, as long as the bytes tell them apart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mmserve.config.deployment import Deployment
from mmserve.httpserver.call import LeasedItem, MediaItem
from mmserve.httpserver.mm_cache.alloc_path import Generation
from mmserve.ipc.arena import Arena
from tests.fakes.chat_models import deployment_of, write_chat_model
from tests.fakes.lanes import GENERATIONS, BothLanes

BAD_KEY = b"the same for all"


def item(number: int, nbytes: int = 3000) -> MediaItem:
    """As a hash that is a constant would have it."""
    return MediaItem(bytes([number]) * nbytes, 40, 30, BAD_KEY, f"part{number}")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return deployment_of(write_chat_model(tmp_path_factory.mktemp("llava")))


@pytest.fixture
def lanes(deployment: Deployment) -> Iterator[BothLanes]:
    arena = Arena.create(1 << 18)
    yield BothLanes(deployment, arena)
    arena.close()


@pytest.fixture(params=GENERATIONS)
def generation(request: pytest.FixtureRequest) -> Any:
    return request.param


async def hold(lanes: BothLanes, generation: Generation, name: str, items: list[MediaItem]) -> list[LeasedItem]:
    """Check that what is held is what was asked for."""
    async with lanes.lanes[generation].leases.hold(name, items) as leased:
        assert lanes.bytes_held(leased) == [item.data for item in items]
        return leased


def collisions(lanes: BothLanes, generation: Generation) -> float:
    return lanes.samples.total("mm_hash_collisions", generation)


def test_one_request_after_another(lanes: BothLanes, generation: Generation) -> None:
    async def scenario() -> None:
        (first,) = await hold(lanes, generation, "a", [item(1)])
        (second,) = await hold(lanes, generation, "b", [item(2)])
        (again,) = await hold(lanes, generation, "c", [item(2)])
        (unharmed,) = await hold(lanes, generation, "d", [item(1)])
        assert first.record.token_start == unharmed.record.token_start
        assert second.record.token_start == again.record.token_start
        assert first.record.token_start != second.record.token_start
        assert collisions(lanes, generation) == 2
        assert lanes.is_clean()

    lanes.run(scenario)


def test_within_one_request(lanes: BothLanes, generation: Generation) -> None:
    async def scenario() -> None:
        numbers = (1, 2, 1, 3, 2)
        leased = await hold(lanes, generation, "a", [item(number) for number in numbers])
        starts = [one.record.token_start for one in leased]
        assert len(set(starts)) == 3
        assert starts[0] == starts[2]
        assert starts[1] == starts[4]
        assert lanes.is_clean()

    lanes.run(scenario)


@pytest.mark.parametrize("other", GENERATIONS)
def test_one_that_waited_for_the_others_bytes(lanes: BothLanes, generation: Generation, other: Generation) -> None:
    """Compared when they have come."""
    has_waited, writes = threading.Event(), threading.Event()

    def at_call(name: str) -> None:
        if name == "get_items_data":
            has_waited.set()
        elif name == "set_items_data":
            writes.set()
            assert has_waited.wait(20)

    async def scenario() -> None:
        first = asyncio.create_task(hold(lanes, other, "a", [item(1)]))
        await asyncio.to_thread(writes.wait, 20)
        second = asyncio.create_task(hold(lanes, generation, "b", [item(2)]))
        await asyncio.gather(first, second)
        assert collisions(lanes, generation) == 1
        assert lanes.is_clean()

    for link in lanes.links.values():
        link.at_call = at_call
    lanes.run(scenario)


def test_bytes_that_are_encoded_and_gone_cannot_be_compared(lanes: BothLanes, generation: Generation) -> None:
    async def scenario() -> None:
        (first,) = await hold(lanes, generation, "a", [item(1)])
        lanes.table.get_embed("visual", [first.record.item_id])
        lanes.table.set_embed("visual", [first.record.item_id], [True])
        async with lanes.lanes[generation].leases.hold("b", [item(2)]) as (second,):
            assert second.record.state == "hit"
        assert collisions(lanes, generation) == 0

    lanes.run(scenario)


def test_same_bytes_are_no_collision(lanes: BothLanes, generation: Generation) -> None:
    async def scenario() -> None:
        await hold(lanes, generation, "a", [item(1), item(1)])
        await hold(lanes, generation, "b", [item(1)])
        assert collisions(lanes, generation) == 0
        assert lanes.samples.names().count("mm_compare_seconds") == 2

    lanes.run(scenario)
