"""The six calls through a real socket: v1 and v2 behave the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from mmserve.cache_server.client import MediaCacheClient
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.ipc.arena import Arena
from mmserve.ipc.faults import FaultPoint, InjectedFault, arm, is_armed
from mmserve.messages.cache import StoredImage
from mmserve.runtime.errors import Overloaded, TooLarge, Unavailable
from tests.fakes.pictures.cache import alloc_item, until
from tests.fakes.processes.shortages import no_more_descriptors, no_more_threads

Connect = Callable[..., MediaCacheClient]
CAT, DOG, FOX = alloc_item("cat"), alloc_item("dog"), alloc_item("fox")


def _encode(client: MediaCacheClient, *item_ids: int) -> None:
    assert client.get_items_embed(item_ids) == ("pending",) * len(item_ids)
    assert client.set_items_embed(item_ids, [True] * len(item_ids)) == ("ready",) * len(item_ids)


def _in_thread(call: Callable[[], object]) -> Future[object]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(call)
    pool.shutdown(wait=False)
    return future


def test_a_look_changes_nothing(table: SharedMediaTable, arena: Arena, client_of: Connect) -> None:
    http, visual = client_of("http-0"), client_of("visual-0")
    assert http.look_up([]) == ()
    assert [(one.state, one.token_start) for one in http.look_up([CAT, DOG])] == [("absent", -1)] * 2
    assert table.snapshot().num_leases == 0
    (record,) = http.alloc("r", [CAT], wait_s=0)
    assert http.look_up([DOG, CAT])[1] == StoredImage("absent", record.token_start), "its bytes are being written"
    http.set_items_data("r", [record.item_id])
    assert http.look_up([CAT]) == (StoredImage("bytes", record.token_start),)
    _encode(visual, record.item_id)
    http.release("r")
    queries = table.snapshot().counters["mm_cache_queries",]
    assert http.look_up([CAT, DOG]) == (StoredImage("embedding", record.token_start), StoredImage())
    assert queries == 1
    assert not table.snapshot().counters, "not even a query is counted"


def test_the_life_of_an_image(table: SharedMediaTable, arena: Arena, client_of: Connect) -> None:
    http, visual = client_of("http-0"), client_of("visual-0")
    records = http.alloc("r", [CAT, DOG], wait_s=0)
    assert [record.state for record in records] == ["write", "write"]
    assert records[1].token_start >= records[0].token_start + 4
    for record in records:
        assert record.data is not None
        arena.write(record.data, bytes(100))
    ids = [record.item_id for record in records]
    http.set_items_data("r", ids)
    assert http.get_items_data("r", ids, wait_s=0) == ("data", "data")
    _encode(visual, *ids)
    assert http.get_items_data("r", ids, wait_s=0) == ("hit", "hit")
    assert visual.get_items_embed(ids) == ("ready", "ready")
    http.release("r")
    http.release("r")
    again = http.alloc("s", [DOG, CAT], wait_s=0)
    assert [(r.state, r.data) for r in again] == [("hit", None), ("hit", None)]
    assert [r.token_start for r in again] == [r.token_start for r in reversed(records)]


def test_an_item_given_twice_is_written_once(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    records = client.alloc("r", [CAT, DOG, CAT], wait_s=0)
    assert [record.state for record in records] == ["write", "write", "wait"]
    assert records[0].item_id == records[2].item_id
    client.set_items_data("r", [records[0].item_id, records[1].item_id])
    ids = [record.item_id for record in records]
    assert client.get_items_data("r", ids, wait_s=0) == ("data",) * 3
    assert client.set_items_embed([ids[0], ids[2]], [True, True]) == ("ready", "ready")


def test_empty_calls_have_empty_replies(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    assert client.alloc("r", [], wait_s=0) == ()
    assert client.get_items_data("r", [], wait_s=0) == ()
    assert client.get_items_embed([]) == client.set_items_embed([], []) == ()


def test_allocating_again_returns_the_same_records(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    first = client.alloc("r", [CAT, DOG], wait_s=0)
    assert client.alloc("r", [CAT, DOG], wait_s=0) == first
    assert table.snapshot().num_leases == 2


def test_a_request_that_can_never_fit_is_refused_at_once_and_leases_nothing(
    table: SharedMediaTable, client_of: Connect
) -> None:
    client = client_of()
    with pytest.raises(TooLarge):
        client.alloc("r", [alloc_item("huge", 1 << 20)], wait_s=30)
    with pytest.raises(TooLarge):
        client.alloc("r", [alloc_item(name) for name in "abcde"], wait_s=30)
    assert table.snapshot().num_leases == 0
    assert client.alloc("r", [CAT], wait_s=0)[0].state == "write"


def test_a_refused_allocation_leases_nothing(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    client.alloc("a", [CAT, DOG], wait_s=0)
    with pytest.raises(Overloaded):
        client.alloc("b", [FOX, alloc_item("elk"), alloc_item("yak")], wait_s=0)
    assert table.snapshot().num_leases == 2
    assert client.alloc("b", [FOX, alloc_item("elk")], wait_s=0)[1].state == "write"


def test_allocations_wait_for_a_full_arena_in_order_of_arrival(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    client.alloc("holder", [CAT, DOG, FOX], wait_s=0)
    order: list[str] = []

    def want(name: str, count: int) -> None:
        client.alloc(name, [alloc_item(f"{name}{n}") for n in range(count)], wait_s=30)
        order.append(name)
        client.release(name)

    first = _in_thread(lambda: want("first", 3))
    until(lambda: table.snapshot().num_waiting == 1)
    second = _in_thread(lambda: want("second", 2))
    until(lambda: table.snapshot().num_waiting == 2)
    with pytest.raises(Overloaded):
        client.alloc("late", [alloc_item("late 0"), alloc_item("late 1")], wait_s=0)
    client.release("holder")
    first.result(30)
    second.result(30)
    assert order == ["first", "second"]
    assert table.snapshot().num_waiting == 0


def test_an_allocation_that_needs_no_space_does_not_queue(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    client.alloc("holder", [CAT, DOG, FOX], wait_s=0)
    waiting = _in_thread(lambda: client.alloc("big", [alloc_item(f"{n}") for n in range(2)], wait_s=30))
    until(lambda: table.snapshot().num_waiting == 1)
    assert client.alloc("other", [CAT], wait_s=0)[0].state == "wait"
    client.release("holder")
    client.release("other")
    waiting.result(30)


def test_waiting_for_space_ends_in_time(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    client.alloc("holder", [CAT, DOG, FOX], wait_s=0)
    with pytest.raises(Overloaded):
        client.alloc("r", [alloc_item("elk"), alloc_item("yak")], wait_s=0.05)
    assert table.snapshot().num_waiting == 0


def test_of_two_writers_one_writes(table: SharedMediaTable, client_of: Connect) -> None:
    one, two = client_of("http-0"), client_of("http-1")
    (first,), (second,) = one.alloc("a", [CAT], wait_s=0), two.alloc("b", [CAT], wait_s=0)
    assert (first.state, second.state) == ("write", "wait")
    assert two.get_items_data("b", [second.item_id], wait_s=0) == ("wait",)
    waiting = _in_thread(lambda: two.get_items_data("b", [second.item_id], wait_s=30))
    one.set_items_data("a", [first.item_id])
    assert waiting.result(30) == ("data",)


def test_a_waiter_becomes_the_writer_when_the_first_gives_up(table: SharedMediaTable, client_of: Connect) -> None:
    one, two = client_of("http-0"), client_of("http-1")
    (first,), _ = one.alloc("a", [CAT], wait_s=0), two.alloc("b", [CAT, DOG], wait_s=0)
    two.set_items_data("b", [record.item_id for record in two.alloc("b", [DOG], wait_s=0)])
    waiting = _in_thread(lambda: two.get_items_data("b", [first.item_id], wait_s=30))
    one.set_items_data("a", [first.item_id], ok=False)
    assert waiting.result(30) == ("write",)


def test_a_failed_image_is_gone_for_all(table: SharedMediaTable, client_of: Connect) -> None:
    http, visual = client_of("http-0"), client_of("visual-0")
    (record,) = http.alloc("a", [CAT], wait_s=0)
    http.set_items_data("a", [record.item_id])
    assert visual.get_items_embed([record.item_id]) == ("pending",)
    assert visual.set_items_embed([record.item_id], [False]) == ("gone",)
    assert http.get_items_data("a", [record.item_id], wait_s=0) == ("gone",)
    assert visual.get_items_embed([record.item_id, 17]) == ("gone", "gone")


def test_eviction_makes_room_and_stale_handles_are_misses(
    table: SharedMediaTable, arena: Arena, client_of: Connect
) -> None:
    client = client_of()
    (old,) = client.alloc("a", [CAT], wait_s=0)
    client.set_items_data("a", [old.item_id])
    arena.write(old.embed, bytes(100))
    _encode(client, old.item_id)
    client.release("a")
    arena.check(old.embed)
    client.alloc("b", [alloc_item(name) for name in "wxyz"], wait_s=0)
    with pytest.raises(Exception, match="generation"):
        arena.check(old.embed)
    counters = table.snapshot().counters
    assert counters["mm_cache_evictions", "embed"] == 1
    assert counters["mm_cache_queries",] == 5


def test_one_client_serves_many_threads(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    together = threading.Barrier(8)

    def one(number: int) -> list[str]:
        together.wait()
        states = [record.state for record in client.alloc(f"r{number}", [CAT, DOG], wait_s=10)]
        return states

    with ThreadPoolExecutor(8) as pool:
        states = list(pool.map(one, range(8)))
    assert sum(state.count("write") for state in states) == 2
    assert table.snapshot().num_leases == 16


@pytest.mark.parametrize("kind", ["error", "memory"])
def test_a_call_that_fails_in_the_server_is_made_again(
    table: SharedMediaTable, client_of: Connect, tmp_path: Path, kind: InjectedFault
) -> None:
    client = client_of()
    client.alloc("r", [CAT], wait_s=0)
    table.faults = FaultPoint(tmp_path / "fault")
    arm(tmp_path / "fault", kind)
    (record,) = client.alloc("r", [CAT], wait_s=0)
    assert record.state == "write"
    arm(tmp_path / "fault", kind)
    client.release("r")
    assert table.snapshot().num_leases == 0
    assert not is_armed(tmp_path / "fault")


@pytest.mark.parametrize("shortage", [no_more_descriptors, no_more_threads])
def test_a_client_that_cannot_connect_for_a_shortage_says_so_and_can_later(
    table: SharedMediaTable, client_of: Connect, shortage: Callable[[], AbstractContextManager[None]]
) -> None:
    client = client_of()
    with shortage(), pytest.raises(Unavailable):
        client.alloc("r", [CAT], wait_s=0)
    assert client.alloc("r", [CAT], wait_s=0)[0].state == "write"
    client.release("r")
