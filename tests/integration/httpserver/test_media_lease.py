"""Leases against the real cache server, by both RPC generations."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from mmserve.cache_server.client import connect
from mmserve.errors import Overloaded, TooLarge, Unavailable
from mmserve.httpserver.call import MediaItem
from mmserve.httpserver.lane import Generation
from mmserve.httpserver.media_lease import MediaLeases
from mmserve.ipc.arena import Arena
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.cache import AllocItem
from tests.fakes.cache import serving_cache
from tests.fakes.chat_models import deployment_of, write_chat_model
from tests.fakes.samples import Samples

ARENA_NBYTES = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("llava"))


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return Endpoints(tmp_path)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(ARENA_NBYTES)
    yield arena
    arena.close()


@pytest.fixture(params=["v2", "v1"])
def generation(request: pytest.FixtureRequest) -> Generation:
    return cast(Generation, request.param)


def item(number: int, nbytes: int = 5000) -> MediaItem:
    return MediaItem(bytes([number]) * nbytes, 40, 30, number.to_bytes(16, "little"), f"part{number}")


def leases_of(model: Path, arena: Arena, endpoints: Endpoints, generation: Generation, **options: Any) -> MediaLeases:
    deployment, samples = deployment_of(model), Samples()
    return MediaLeases(deployment, arena, endpoints, "httpserver-0", samples, generation, **options)  # type: ignore[arg-type]


def test_many_requests_share_images_and_leave_nothing(
    model: Path, arena: Arena, endpoints: Endpoints, generation: Generation
) -> None:
    async def request(leases: MediaLeases, number: int) -> None:
        items = [item(number), item(100), item(number % 3), item(100)]
        async with leases.hold(f"request-{number}", items) as leased:
            for one, expected in zip(leased, items, strict=True):
                assert one.record.state == "data"
                assert one.record.data is not None
                assert bytes(arena.readable(one.record.data)) == expected.data
            assert leased[1].record.token_start == leased[3].record.token_start

    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, generation)
        async with asyncio.TaskGroup() as group:
            for number in range(24):
                group.create_task(request(leases, number))
        # Nothing is leased any more: a request that needs nearly all of the arena gets it.
        async with leases.hold("all", [item(200, ARENA_NBYTES - 16_384)]) as leased:
            assert len(leased) == 1
        await leases.aclose()

    with serving_cache(endpoints, arena):
        asyncio.run(scenario())


def test_cancelled_requests_leave_nothing(
    model: Path, arena: Arena, endpoints: Endpoints, generation: Generation
) -> None:
    async def request(leases: MediaLeases, number: int) -> None:
        async with leases.hold(f"request-{number}", [item(number), item(100, 200_000)]):
            await asyncio.sleep(60)

    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, generation)
        for turns in range(40):
            task = asyncio.create_task(request(leases, turns))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        async with leases.hold("all", [item(200, ARENA_NBYTES - 16_384)]) as leased:
            assert len(leased) == 1
        await leases.aclose()

    with serving_cache(endpoints, arena):
        asyncio.run(scenario())


def test_another_process_writes_and_we_wait(
    model: Path, arena: Arena, endpoints: Endpoints, generation: Generation
) -> None:
    mine = item(1)

    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, generation)
        other = connect(endpoints, "httpserver-1", batched=True)
        (record,) = await asyncio.to_thread(
            lambda: other.alloc("other", [AllocItem(mine.key, 4, 5000, 4 * 8 * 4)], wait_s=0.0)
        )

        async def held() -> bytes:
            async with leases.hold("mine", [mine]) as leased:
                assert leased[0].record.data is not None
                return bytes(arena.readable(leased[0].record.data))

        waiting = asyncio.create_task(held())
        await asyncio.sleep(0)
        assert record.data is not None
        # The other one dies instead of writing: its work falls to the one that waits.
        await asyncio.to_thread(other.release, "other")
        assert await waiting == mine.data
        await leases.aclose()

    with serving_cache(endpoints, arena):
        asyncio.run(scenario())


async def hold(leases: MediaLeases, items: list[MediaItem]) -> None:
    async with leases.hold("r", items):
        pass


def test_what_does_not_fit(model: Path, arena: Arena, endpoints: Endpoints, generation: Generation) -> None:
    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, generation, patience_s=0.05)
        with pytest.raises(TooLarge):
            await hold(leases, [item(1, 2 * ARENA_NBYTES)])
        async with leases.hold("first", [item(2, ARENA_NBYTES // 2)]):
            with pytest.raises(Overloaded):
                await hold(leases, [item(3, ARENA_NBYTES // 2)])
        await hold(leases, [item(3, ARENA_NBYTES // 2)])
        await leases.aclose()

    with serving_cache(endpoints, arena):
        asyncio.run(scenario())


def test_a_cache_server_that_comes_back(
    model: Path, arena: Arena, endpoints: Endpoints, generation: Generation
) -> None:
    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, generation)
        waiting = asyncio.create_task(hold(leases, [item(1)]))
        await asyncio.sleep(0)
        with serving_cache(endpoints, arena):
            await waiting
            await leases.aclose()

    asyncio.run(scenario())


def test_without_a_cache_server(model: Path, arena: Arena, endpoints: Endpoints, generation: Generation) -> None:
    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, generation, patience_s=0.05)
        with pytest.raises(Unavailable):
            await hold(leases, [item(1)])
        await leases.aclose()

    asyncio.run(scenario())
