"""Decode permits, requested by several processes over the real socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from mmserve.cache_server.client import MediaCacheClient
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.waiting.decode_permits import DecodePermits
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.cache import PermitRequest, PermitsReply
from tests.fakes.pictures.cache import alloc_item, serving_cache, until
from tests.fakes.processes.leaks import leaks

FIRST, SECOND = PermitRequest("first", 100, 1.0), PermitRequest("second", 100, 2.0)


@pytest.fixture
def table(endpoints: Endpoints, arena: Arena) -> Iterator[SharedMediaTable]:
    with serving_cache(endpoints, arena, DecodePermits(1, 1000)) as table:
        yield table


def _waiting(table: SharedMediaTable) -> Callable[[], bool]:
    return lambda: table.snapshot().num_permits_waiting == 1


def _in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def test_one_permit_for_all_processes(table: SharedMediaTable, client_of: Callable[..., MediaCacheClient]) -> None:
    one, other = client_of("visual-0"), client_of("visual-1")
    assert one.acquire_permits([FIRST], wait_s=0.0).granted == ("first",)
    assert other.acquire_permits([SECOND], wait_s=0.0) == PermitsReply()
    thread, results = _in_thread(lambda: other.acquire_permits([SECOND], wait_s=30.0))
    until(_waiting(table))
    one.release_permit("first")
    thread.join(20)
    assert results == [PermitsReply(granted=("second",))]
    assert table.snapshot().peak_permits == 1


def test_the_permit_of_a_dead_process_is_released(
    table: SharedMediaTable, client_of: Callable[..., MediaCacheClient]
) -> None:
    dying, other = client_of("visual-0"), client_of("visual-1")
    assert dying.acquire_permits([FIRST], wait_s=0.0).granted == ("first",)
    thread, results = _in_thread(lambda: other.acquire_permits([SECOND], wait_s=30.0))
    until(_waiting(table))
    dying.close()
    thread.join(20)
    assert results == [PermitsReply(granted=("second",))]


def test_a_request_that_is_released_waits_no_more(
    table: SharedMediaTable, client_of: Callable[..., MediaCacheClient]
) -> None:
    one, other = client_of("visual-0"), client_of("visual-1")
    assert one.acquire_permits([FIRST], wait_s=0.0).granted == ("first",)
    thread, results = _in_thread(lambda: other.acquire_permits([SECOND], wait_s=30.0))
    until(_waiting(table))
    other.release_permit("second")
    thread.join(20)
    assert results == [PermitsReply()]
    snapshot = table.snapshot()
    assert (snapshot.num_permits, snapshot.num_permits_waiting) == (1, 0)
    one.release_permit("first")
    assert table.snapshot().budgets["pixels"].used_nbytes == 0


def test_the_owner_of_the_only_permit_is_promised_the_next_one(
    table: SharedMediaTable, client_of: Callable[..., MediaCacheClient]
) -> None:
    client, other = client_of("visual-0"), client_of("visual-1")
    assert client.acquire_permits([FIRST, SECOND], wait_s=0.0) == PermitsReply(granted=("first",), promised="second")
    thread, results = _in_thread(lambda: other.acquire_permits([PermitRequest("third", 100, 3.0)], wait_s=30.0))
    until(lambda: table.snapshot().num_permits_waiting == 2)
    client.release_permit("first")
    assert (table.snapshot().num_permits, table.snapshot().num_permits_waiting) == (1, 1)
    client.release_permit("second")
    thread.join(20)
    assert results == [PermitsReply(granted=("third",))]
    assert table.snapshot().peak_permits == 1


def test_leases_left_after_unregister_are_leaks_those_of_a_killed_process_are_not(
    table: SharedMediaTable, client_of: Callable[..., MediaCacheClient]
) -> None:
    counted: dict[str, float] = {}

    def all_counted() -> bool:
        for (metric, *_), count in table.snapshot().counters.items():
            counted[metric] = counted.get(metric, 0) + count
        return counted.get("mm_lease_leaks", 0) == 2 and counted.get("mm_leases_reclaimed", 0) == 2

    with leaks() as found:
        for name, in_good_order in (("http-0", True), ("http-1", False)):
            client = client_of(name)
            client.alloc("r", [alloc_item(name), alloc_item(f"{name} too")], wait_s=0)
            if in_good_order:
                client.unregister()
            client.close()
        until(all_counted)
    (message,) = found
    assert message.startswith("http-0/")
    assert message.endswith("forgot 2 leases")
