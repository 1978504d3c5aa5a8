"""Leases against the real cache server, by both RPC generations."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from subprocess import PIPE
from typing import Any, cast

import pytest

from mmserve.cache_server.client import connect
from mmserve.httpserver.call import AllocVersion, MediaItem
from mmserve.httpserver.mm_cache.leases import MediaLeases
from mmserve.ipc.arena import Arena
from mmserve.ipc.endpoints import Endpoints
from mmserve.runtime.errors import TooLarge, Unavailable
from tests.fakes.cache import serving_cache, until
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
def alloc_version(request: pytest.FixtureRequest) -> AllocVersion:
    return cast(AllocVersion, request.param)


def item(number: int, nbytes: int = 5000) -> MediaItem:
    return MediaItem(bytes([number]) * nbytes, 40, 30, number.to_bytes(16, "little"), f"part{number}")


def leases_of(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion, **options: Any
) -> MediaLeases:
    deployment, samples = deployment_of(model, data_budget_mb=1), Samples()
    return MediaLeases(deployment, arena, endpoints, "httpserver-0", samples, alloc_version, **options)  # type: ignore[arg-type]


def test_many_requests_share_images_and_leave_nothing(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion
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
        leases = leases_of(model, arena, endpoints, alloc_version)
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
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion
) -> None:
    async def request(leases: MediaLeases, number: int) -> None:
        async with leases.hold(f"request-{number}", [item(number), item(100, 200_000)]):
            await asyncio.sleep(60)

    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, alloc_version)
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


HOLDER = """
import asyncio, sys
from pathlib import Path
from mmserve.ipc.arena import Arena
from mmserve.ipc.endpoints import Endpoints
from tests.integration.httpserver.test_media_lease import item, leases_of
directory, run_dir, alloc_version, fd = sys.argv[1:]
leases = leases_of(Path(directory), Arena.attach(int(fd)), Endpoints(run_dir), alloc_version)
def tell(*args):
    print("writing", flush=True)
    sys.stdin.read()
# All but the last word: the bytes are written, and nobody is told.
leases._cache._client.set_items_data = tell
async def write():
    async with leases.hold("theirs", [item(1)]):
        pass
asyncio.run(write())
"""


@pytest.mark.parametrize("writer", ["v1", "v2"])
def test_who_waits_takes_over_from_a_killed_writer(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion, writer: AllocVersion
) -> None:
    """In whichever lane both are."""
    command = [sys.executable, "-c", HOLDER, str(model), str(endpoints.run_dir), writer, str(arena.fd)]

    async def scenario(holder: subprocess.Popen[str]) -> None:
        leases = leases_of(model, arena, endpoints, alloc_version)
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == "writing\n"
        waiting = asyncio.create_task(bytes_of(leases, arena, item(1)))
        await has_waited(leases)
        holder.kill()
        assert await waiting == item(1).data
        await leases.aclose()

    with (
        serving_cache(endpoints, arena) as table,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, pass_fds=[arena.fd]) as holder,
    ):
        asyncio.run(scenario(holder))
        until(lambda: table.snapshot().num_leases == 0)


@pytest.mark.parametrize("writer", ["v1", "v2"])
@pytest.mark.parametrize("ends", ["written", "cancelled"])
def test_who_waits_goes_on_when_the_writer_ends(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion, writer: AllocVersion, ends: str
) -> None:
    """The first request stops with its bytes written and nobody told; then it goes on, or is cancelled there."""
    stopped, go_on = threading.Event(), threading.Event()

    async def scenario() -> None:
        first, second = (leases_of(model, arena, endpoints, lane) for lane in (writer, alloc_version))
        client = first._cache._client
        tell = client.set_items_data

        def told(*args: Any) -> None:
            stopped.set()
            assert go_on.wait(30)
            tell(*args, ok=ends == "written")

        client.set_items_data = told  # type: ignore[method-assign]
        writing = asyncio.create_task(bytes_of(first, arena, item(1)))
        await asyncio.to_thread(stopped.wait, 30)
        waiting = asyncio.create_task(bytes_of(second, arena, item(1)))
        await has_waited(second)
        if ends == "cancelled":
            writing.cancel()
        go_on.set()
        assert await waiting == item(1).data
        await asyncio.wait([writing])
        assert writing.cancelled() == (ends == "cancelled")
        written_again = second._metrics.total("mm_items", "write", alloc_version)  # type: ignore[attr-defined]
        assert written_again == 0, "at first it is told to wait"
        await first.aclose()
        await second.aclose()

    with serving_cache(endpoints, arena):
        asyncio.run(scenario())


async def bytes_of(leases: MediaLeases, arena: Arena, wanted: MediaItem) -> bytes:
    async with leases.hold("mine", [wanted, wanted]) as leased:
        assert leased[0].record == leased[1].record
        assert leased[0].record.data is not None
        return bytes(arena.readable(leased[0].record.data))


async def has_waited(leases: MediaLeases) -> None:
    """A call that waits for others' bytes is on its way."""
    async with asyncio.timeout(30):
        while not leases._cache._for_others.threads._started:  # noqa: ASYNC110 - announced to nobody
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("order", [("v1", "v2", "v1"), ("v2", "v1", "v2")])
def test_both_lanes_share_one_cache(
    model: Path, arena: Arena, endpoints: Endpoints, order: tuple[AllocVersion, ...]
) -> None:
    """What one lane wrote, the other finds, at the same place and with the same tokens."""

    async def scenario() -> None:
        lanes = {lane: leases_of(model, arena, endpoints, lane) for lane in set(order)}
        async with AsyncExitStack() as stack:
            held = [
                await stack.enter_async_context(lanes[lane].hold(f"r{turn}", [item(1), item(2), item(1)]))
                for turn, lane in enumerate(order)
            ]
            assert held[0] == held[1] == held[2]
        written = [leases._metrics.total("mm_items", "write", lane) for lane, leases in lanes.items()]  # type: ignore[attr-defined]
        assert sorted(written) == [0, 2]
        for leases in lanes.values():
            await leases.aclose()

    with serving_cache(endpoints, arena) as table:
        asyncio.run(scenario())
        assert table.snapshot().num_leases == 0


async def hold(leases: MediaLeases, items: list[MediaItem]) -> None:
    async with leases.hold("r", items):
        pass


def test_what_does_not_fit(model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion) -> None:
    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, alloc_version, patience_s=0.05)
        with pytest.raises(TooLarge):
            await hold(leases, [item(1, 2 * ARENA_NBYTES)])
        async with leases.hold("first", [item(2, ARENA_NBYTES // 2)]):
            with pytest.raises(Unavailable):
                await hold(leases, [item(3, ARENA_NBYTES // 2)])
        await hold(leases, [item(3, ARENA_NBYTES // 2)])
        await leases.aclose()

    with serving_cache(endpoints, arena):
        asyncio.run(scenario())


def test_a_cache_server_that_comes_back(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion
) -> None:
    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, alloc_version)
        waiting = asyncio.create_task(hold(leases, [item(1)]))
        await asyncio.sleep(0)
        with serving_cache(endpoints, arena):
            await waiting
            await leases.aclose()

    asyncio.run(scenario())


def test_without_a_cache_server(model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion) -> None:
    client = connect(endpoints, "httpserver-0", batched=alloc_version == "v2", patience_s=0.05)

    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, alloc_version, patience_s=0.05, client=client)
        with pytest.raises(Unavailable):
            await hold(leases, [item(1)])
        await leases.aclose()

    asyncio.run(scenario())
