"""MediaLeases against the real cache server, by both RPC versions."""

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
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.httpserver.call import AllocVersion, MediaItem
from mmserve.httpserver.mm_cache import late_releases
from mmserve.httpserver.mm_cache.leases import MediaLeases
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.runtime.errors import TooLarge, Unavailable
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.cache import serving_cache, until
from tests.fakes.processes.samples import Samples

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


def test_many_requests_share_images_and_leave_no_lease(
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


def test_cancelled_requests_leave_no_lease(
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


WRITER_PROCESS = """
import asyncio, sys
from pathlib import Path
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from tests.integration.httpserver.pictures.test_media_lease import item, leases_of
directory, run_dir, alloc_version, fd = sys.argv[1:]
leases = leases_of(Path(directory), Arena.attach(int(fd)), Endpoints(run_dir), alloc_version)
def stop(*args):
    print("writing", flush=True)
    sys.stdin.read()
# Stops between the write and the RPC that reports it.
leases._cache._client.set_items_data = stop
async def write():
    async with leases.hold("theirs", [item(1)]):
        pass
asyncio.run(write())
"""


@pytest.mark.parametrize("writer", ["v1", "v2"])
def test_a_waiting_request_takes_over_from_a_killed_writer(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion, writer: AllocVersion
) -> None:
    """For every combination of their allocation paths."""
    command = [sys.executable, "-c", WRITER_PROCESS, str(model), str(endpoints.run_dir), writer, str(arena.fd)]

    async def scenario(writer_process: subprocess.Popen[str]) -> None:
        leases = leases_of(model, arena, endpoints, alloc_version)
        assert writer_process.stdout is not None
        assert await asyncio.to_thread(writer_process.stdout.readline) == "writing\n"
        waiting = asyncio.create_task(bytes_of(leases, arena, item(1)))
        await has_waited(leases)
        writer_process.kill()
        assert await waiting == item(1).data
        await leases.aclose()

    with (
        serving_cache(endpoints, arena) as table,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, pass_fds=[arena.fd]) as writer_process,
    ):
        asyncio.run(scenario(writer_process))
        until(lambda: table.snapshot().num_leases == 0)


@pytest.mark.parametrize("writer", ["v1", "v2"])
@pytest.mark.parametrize("ends", ["written", "cancelled"])
def test_a_waiting_request_continues_when_the_writer_ends(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion, writer: AllocVersion, ends: str
) -> None:
    """The first request stops between its write and its RPC; then it continues, or is cancelled there."""
    stopped, go_on = threading.Event(), threading.Event()

    async def scenario() -> None:
        first, second = (leases_of(model, arena, endpoints, version) for version in (writer, alloc_version))
        client = first._cache._client
        set_items_data = client.set_items_data

        def delayed(*args: Any) -> None:
            stopped.set()
            assert go_on.wait(30)
            set_items_data(*args, ok=ends == "written")

        client.set_items_data = delayed  # type: ignore[method-assign]
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


async def bytes_of(leases: MediaLeases, arena: Arena, item: MediaItem) -> bytes:
    async with leases.hold("mine", [item, item]) as leased:
        assert leased[0].record == leased[1].record
        assert leased[0].record.data is not None
        return bytes(arena.readable(leased[0].record.data))


async def has_waited(leases: MediaLeases) -> None:
    """Returns once a call that waits for data of another request has started."""
    async with asyncio.timeout(30):
        while not leases._cache._data_threads.threads._started:  # noqa: ASYNC110 - there is no event for this
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("order", [("v1", "v2", "v1"), ("v2", "v1", "v2")])
def test_both_allocation_paths_share_one_cache(
    model: Path, arena: Arena, endpoints: Endpoints, order: tuple[AllocVersion, ...]
) -> None:
    """Images written by one path are found by the other, with the same handles and token ids."""

    async def scenario() -> None:
        by_version = {version: leases_of(model, arena, endpoints, version) for version in set(order)}
        async with AsyncExitStack() as stack:
            held = [
                await stack.enter_async_context(by_version[version].hold(f"r{number}", [item(1), item(2), item(1)]))
                for number, version in enumerate(order)
            ]
            assert held[0] == held[1] == held[2]
        written = [leases._metrics.total("mm_items", "write", version) for version, leases in by_version.items()]  # type: ignore[attr-defined]
        assert sorted(written) == [0, 2]
        for leases in by_version.values():
            await leases.aclose()

    with serving_cache(endpoints, arena) as table:
        asyncio.run(scenario())
        assert table.snapshot().num_leases == 0


async def hold(leases: MediaLeases, items: list[MediaItem]) -> None:
    async with leases.hold("r", items):
        pass


def test_images_that_do_not_fit_are_refused(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion
) -> None:
    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, alloc_version, timeout_s=0.05)
        with pytest.raises(TooLarge):
            await hold(leases, [item(1, 2 * ARENA_NBYTES)])
        async with leases.hold("first", [item(2, ARENA_NBYTES // 2)]):
            with pytest.raises(Unavailable):
                await hold(leases, [item(3, ARENA_NBYTES // 2)])
        await hold(leases, [item(3, ARENA_NBYTES // 2)])
        await leases.aclose()

    with serving_cache(endpoints, arena):
        asyncio.run(scenario())


def test_a_restarted_cache_server_serves_again(
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


def test_requests_without_a_cache_server_are_unavailable(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion
) -> None:
    client = connect(endpoints, "httpserver-0", batched=alloc_version == "v2", reconnect_timeout_s=0.05)

    async def scenario() -> None:
        leases = leases_of(model, arena, endpoints, alloc_version, timeout_s=0.05, client=client)
        with pytest.raises(Unavailable):
            await hold(leases, [item(1)])
        await leases.aclose()

    asyncio.run(scenario())


def test_a_server_that_does_not_answer_costs_neither_time_nor_leases(
    model: Path, arena: Arena, endpoints: Endpoints, alloc_version: AllocVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are refused when their time is up. What the server does for them later is undone."""
    monkeypatch.setattr(late_releases, "INTERVAL_S", 0.05)

    async def refused(leases: MediaLeases, name: str) -> None:
        with pytest.raises(Unavailable):
            async with leases.hold(name, [item(100)]):
                pytest.fail("the server does not answer")

    async def scenario(table: SharedMediaTable) -> None:
        client = connect(endpoints, "httpserver-0", batched=alloc_version == "v2", call_margin_s=0.2)
        leases = leases_of(model, arena, endpoints, alloc_version, client=client, timeout_s=0.1)
        try:
            async with leases.hold("before", [item(1)]):
                await asyncio.to_thread(table._lock.acquire)
                try:
                    await asyncio.gather(*(refused(leases, f"request-{number}") for number in range(8)))
                finally:
                    table._lock.release()
                await asyncio.to_thread(until, lambda: table.snapshot().num_leases == 1 and not client.is_silent)
            await asyncio.to_thread(until, lambda: table.snapshot().num_leases == 0)
            await asyncio.to_thread(until, lambda: not len(leases._cache._late_releases))
            async with leases.hold("after", [item(2)]) as leased:
                assert leased[0].record.state == "data"
        finally:
            await leases.aclose()

    with serving_cache(endpoints, arena) as table:
        asyncio.run(scenario(table))
        assert table.snapshot().num_leases == 0
