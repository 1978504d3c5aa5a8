import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mmserve.config.resolved.deployment import Deployment
from mmserve.httpserver.call import AllocVersion, MediaItem
from mmserve.httpserver.mm_cache.calls import _MAX_WAITING_CALLS
from mmserve.httpserver.mm_cache.leases import MediaLeases
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.cache import AllocItem, ItemState
from mmserve.runtime.errors import MediaError, Shortage, TooLarge, Unavailable
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.media_cache import FakeMediaCache
from tests.fakes.processes.samples import Samples


def item(number: int, nbytes: int = 100) -> MediaItem:
    return MediaItem(bytes([number]) * nbytes, 40, 30, number.to_bytes(16, "little"), f"part{number}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    arena = Arena.create(1 << 21)
    yield arena
    arena.close()


class CallGate:
    """Stops one call of one request in its thread until ``open``. Construct it on the event loop."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._opened = threading.Event()

    def stop_here(self) -> None:
        self._loop.call_soon_threadsafe(self.reached.set)
        assert self._opened.wait(10)

    def open(self) -> None:
        self._opened.set()


class Worker:
    """MediaLeases with a fake cache."""

    def __init__(
        self, deployment: Deployment, arena: Arena, alloc_version: AllocVersion = "v2", timeout_s: float = 10.0
    ) -> None:
        self.arena = arena
        self.cache = FakeMediaCache(arena)
        self.samples = Samples()
        self.leases = MediaLeases(
            deployment,
            arena,
            Endpoints("/nowhere"),
            "httpserver-0",
            self.samples,  # type: ignore[arg-type]
            alloc_version,
            client=self.cache,  # type: ignore[arg-type]
            timeout_s=timeout_s,
        )
        self._gates: dict[tuple[str, str], CallGate] = {}
        self.cache.at_call = self._at_call

    def gate(self, call: str, request_id: str) -> CallGate:
        self._gates[call, request_id] = CallGate()
        return self._gates[call, request_id]

    def _at_call(self, call: str, request_id: str) -> None:
        if gate := self._gates.get((call, request_id)):
            gate.stop_here()

    def run(self, scenario: Callable[[], Awaitable[Any]]) -> Any:
        async def run_and_close() -> Any:
            try:
                return await scenario()
            finally:
                await self.leases.aclose()

        return asyncio.run(run_and_close())


def room_for(worker: Worker, *items: MediaItem) -> list[AllocItem]:
    sizes = worker.leases._sizes
    return sizes.alloc_items(items, sizes.expansions(items))


@pytest.fixture(params=["v2", "v1"])
def worker(request: pytest.FixtureRequest, model: Path, arena: Arena) -> Worker:
    return Worker(deployment_of(model), arena, request.param)


def test_new_images_are_written_once_and_released_once(worker: Worker) -> None:
    async def scenario() -> None:
        items = [item(1), item(2, 300_000), item(1), item(3)]
        async with worker.leases.hold("r", items) as leased:
            assert [one.expansion.num_rows for one in leased] == [4, 4, 4, 4]
            assert [one.record.state for one in leased] == ["data"] * 4
            assert leased[0].record == leased[2].record
            for one, expected in zip(leased, items, strict=True):
                assert one.record.data is not None
                assert bytes(worker.arena.readable(one.record.data)) == expected.data
            assert "release" not in worker.cache.names("r")

    worker.run(scenario)
    assert worker.cache.names("r")[-1] == "release"
    assert worker.cache.names("r").count("release") == 1
    assert worker.cache.names("r").count("set_items_data") == 1


def test_metrics_count_states_and_stages(worker: Worker) -> None:
    worker.cache.hits.add(item(9).key)

    async def scenario() -> None:
        async with worker.leases.hold("r", [item(1), item(9), item(2)]):
            pass

    worker.run(scenario)
    alloc_version = worker.leases._alloc_version
    assert worker.samples.total("mm_items", "write", alloc_version) == 2
    assert worker.samples.total("mm_items", "hit", alloc_version) == 1
    assert sorted((name, labels) for name, _, labels in worker.samples.recorded if name != "mm_items") == [
        ("mm_alloc_rpc_seconds", (alloc_version,)),
        ("mm_alloc_seconds", (alloc_version,)),
        ("mm_copied_bytes", ("data", alloc_version)),
        ("mm_write_seconds", (alloc_version,)),
    ]


def test_each_image_is_copied_and_counted_once(worker: Worker) -> None:
    worker.cache.hits.add(item(9).key)

    async def scenario() -> None:
        async with worker.leases.hold("r", [item(1), item(9), item(2, 300_000), item(1)]):
            pass

    worker.run(scenario)
    assert worker.samples.total("mm_copied_bytes", "data", worker.leases._alloc_version) == len(item(1).data) + 300_000


def test_hits_write_nothing(worker: Worker) -> None:
    worker.cache.hits.add(item(1).key)

    async def scenario() -> None:
        async with worker.leases.hold("r", [item(1)]) as leased:
            assert leased[0].record.state == "hit"
            assert leased[0].record.data is None

    worker.run(scenario)
    assert worker.cache.names("r") == ["alloc", "release"]


def test_a_request_without_images_makes_no_calls(worker: Worker) -> None:
    async def scenario() -> None:
        async with worker.leases.hold("r", []) as leased:
            assert leased == []

    worker.run(scenario)
    assert worker.cache.names("r") == []


def test_a_second_request_waits_for_the_first_ones_bytes(worker: Worker) -> None:
    async def scenario() -> None:
        written, waits = worker.gate("set_items_data", "first"), worker.gate("get_items_data", "second")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(hold_once(worker, "first", [item(1)]))
            await written.reached.wait()
            second = group.create_task(hold_once(worker, "second", [item(1)]))
            await waits.reached.wait()
            waits.open()
            written.open()
        assert first.result() == second.result() == ["data"]

    worker.run(scenario)
    assert "set_items_data" not in worker.cache.names("second")


async def hold_once(worker: Worker, request_id: str, items: list[MediaItem]) -> list[str]:
    async with worker.leases.hold(request_id, items) as leased:
        return [one.record.state for one in leased]


def test_a_waiting_request_writes_when_the_writer_ends(worker: Worker) -> None:
    async def scenario() -> None:
        written, waits = worker.gate("set_items_data", "first"), worker.gate("get_items_data", "second")
        first = asyncio.create_task(hold_once(worker, "first", [item(1)]))
        await written.reached.wait()
        second = asyncio.create_task(hold_once(worker, "second", [item(1), item(2)]))
        await waits.reached.wait()
        first.cancel()
        worker.cache.fail_next_set = True
        written.open()
        await asyncio.wait([first])
        waits.open()
        assert await second == ["data", "data"]

    worker.run(scenario)
    assert worker.cache.names("second").count("set_items_data") == 2


def test_the_wait_for_leases_has_a_timeout(model: Path, arena: Arena) -> None:
    worker = Worker(deployment_of(model), arena, timeout_s=0.05)
    worker.cache.items = {}

    async def scenario() -> None:
        worker.cache.alloc("another", room_for(worker, item(1)), wait_s=0)
        with pytest.raises(Unavailable, match="another request did not write") as caught:
            await hold_once(worker, "r", [item(1)])
        assert caught.value.retry_after_s is not None
        worker.cache.release("another")

    worker.run(scenario)
    assert worker.cache.names("r")[-1] == "release"


def test_a_request_beyond_the_waiting_threads_is_told_to_try_again(worker: Worker) -> None:
    """It times out while it waits for a thread, before the cache server is called."""

    async def scenario() -> None:
        (record,) = worker.cache.alloc("another", room_for(worker, item(1)), wait_s=0)
        gates = [worker.gate("get_items_data", f"r{number}") for number in range(_MAX_WAITING_CALLS)]

        def wait(name: str, timeout_s: float) -> Coroutine[Any, Any, Sequence[ItemState]]:
            return worker.leases._cache.wait_for_data(name, (record.item_id,), time.monotonic() + timeout_s)

        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(wait(f"r{number}", 30.0)) for number in range(_MAX_WAITING_CALLS)]
            for gate in gates:
                await gate.reached.wait()
            with pytest.raises(Unavailable, match="too many requests wait") as caught:
                await wait("one more", 0.0)
            assert caught.value.retry_after_s is not None
            worker.cache.set_items_data("another", (record.item_id,))
            for gate in gates:
                gate.open()
        assert {task.result() for task in waiting} == {("data",)}
        worker.cache.release("another")

    worker.run(scenario)
    assert worker.cache.names("one more") == []


def test_space_that_becomes_free_is_used(worker: Worker) -> None:
    async def scenario() -> None:
        worker.cache.capacity_nbytes = 1000
        async with asyncio.TaskGroup() as group, worker.leases.hold("first", [item(1, 600)]):
            asks = worker.gate("alloc", "second")
            second = group.create_task(hold_once(worker, "second", [item(2, 600)]))
            await asks.reached.wait()
            worker.cache.forget_on_release("first")
            asks.open()
        assert second.result() == ["data"]

    worker.run(scenario)
    assert worker.cache.names("second").count("release") == 1


def test_requests_that_never_fit_and_that_time_out_are_refused(model: Path, arena: Arena) -> None:
    worker = Worker(deployment_of(model), arena, timeout_s=0.05)

    async def scenario() -> None:
        worker.cache.capacity_nbytes = 1000
        with pytest.raises(TooLarge):
            await hold_once(worker, "big", [item(1, 2000)])
        async with worker.leases.hold("first", [item(1, 600)]):
            with pytest.raises(Unavailable) as caught:
                await hold_once(worker, "second", [item(2, 600)])
            assert caught.value.retry_after_s is not None

    worker.run(scenario)
    for request_id in ("big", "first", "second"):
        assert worker.cache.names(request_id).count("release") == 1


def test_a_restarted_cache_is_asked_again(worker: Worker) -> None:
    async def scenario() -> None:
        worker.cache.alloc("another", room_for(worker, item(1)), wait_s=0)
        waits = worker.gate("get_items_data", "r")
        held = asyncio.create_task(hold_once(worker, "r", [item(1)]))
        await waits.reached.wait()
        worker.cache.drop_everything()
        waits.open()
        assert await held == ["data"]

    worker.run(scenario)
    assert worker.cache.names("r").count("alloc") == 2
    assert worker.cache.names("r").count("release") == 1


def test_an_image_of_impossible_shape_is_named_in_the_error(worker: Worker) -> None:
    async def scenario() -> None:
        strip = MediaItem(b"x", 60_000_000, 1, b"k" * 16, "messages[0]")
        with pytest.raises(MediaError) as caught:
            await hold_once(worker, "r", [strip])
        assert caught.value.param == "messages[0]"

    worker.run(scenario)
    assert [name for name, of in worker.cache.calls if of] == []


def test_a_release_without_a_server_is_no_error(worker: Worker) -> None:
    def at_call(name: str, request_id: str) -> None:
        if name in ("release", "unregister"):
            raise Unavailable("gone")

    worker.cache.at_call = at_call

    async def scenario() -> None:
        assert await hold_once(worker, "r", [item(1)]) == ["data"]

    worker.run(scenario)


def test_a_shortage_is_not_waited_out(worker: Worker) -> None:
    def at_call(name: str, request_id: str) -> None:
        if name == "alloc":
            raise Shortage("no descriptors", retry_after_s=2.0)

    worker.cache.at_call = at_call

    async def scenario() -> None:
        with pytest.raises(Shortage):
            await hold_once(worker, "r", [item(1)])

    worker.run(scenario)
    assert [name for name, of in worker.cache.calls if of == "r"].count("alloc") == 1


def test_embeddings_larger_than_their_budget_are_refused(model: Path, arena: Arena) -> None:
    worker = Worker(deployment_of(model, embed_budget_mb=0.0001), arena)

    async def scenario() -> None:
        with pytest.raises(TooLarge, match="--embed-budget-mb"):
            await hold_once(worker, "r", [item(1)])

    worker.run(scenario)
