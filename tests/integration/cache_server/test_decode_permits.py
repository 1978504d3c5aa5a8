"""DecodePermits at decoding, asked for by several processes over the real socket."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from mmserve.cache_server.client import MediaCacheClient
from mmserve.cache_server.decode_permits import DecodePermits
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.ipc.arena import Arena
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.cache import PermitRequest, PermitsReply
from tests.fakes.cache import alloc_item, serving_cache, until
from tests.fakes.leaks import leaks

FIRST, SECOND = PermitRequest("first", 100, 1.0), PermitRequest("second", 100, 2.0)


@pytest.fixture
def table(endpoints: Endpoints, arena: Arena) -> Iterator[SharedMediaTable]:
    with serving_cache(endpoints, arena, DecodePermits(1, 1000)) as table:
        yield table


def _waiting(table: SharedMediaTable) -> Callable[[], bool]:
    return lambda: table.snapshot().num_turns_waiting == 1


def _in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def test_one_turn_for_all_processes(table: SharedMediaTable, client_of: Callable[..., MediaCacheClient]) -> None:
    one, other = client_of("visual-0"), client_of("visual-1")
    assert one.begin_turns([FIRST], wait_s=0.0).come == ("first",)
    assert other.begin_turns([SECOND], wait_s=0.0) == PermitsReply()
    thread, results = _in_thread(lambda: other.begin_turns([SECOND], wait_s=30.0))
    until(_waiting(table))
    one.end_turn("first")
    thread.join(20)
    assert results == [PermitsReply(come=("second",))]
    assert table.snapshot().max_turns == 1


def test_the_turn_of_a_dead_process_is_free(
    table: SharedMediaTable, client_of: Callable[..., MediaCacheClient]
) -> None:
    dying, other = client_of("visual-0"), client_of("visual-1")
    assert dying.begin_turns([FIRST], wait_s=0.0).come == ("first",)
    thread, results = _in_thread(lambda: other.begin_turns([SECOND], wait_s=30.0))
    until(_waiting(table))
    dying.close()
    thread.join(20)
    assert results == [PermitsReply(come=("second",))]


def test_a_request_that_is_dropped_waits_no_more(
    table: SharedMediaTable, client_of: Callable[..., MediaCacheClient]
) -> None:
    one, other = client_of("visual-0"), client_of("visual-1")
    assert one.begin_turns([FIRST], wait_s=0.0).come == ("first",)
    thread, results = _in_thread(lambda: other.begin_turns([SECOND], wait_s=30.0))
    until(_waiting(table))
    other.end_turn("second")
    thread.join(20)
    assert results == [PermitsReply()]
    snapshot = table.snapshot()
    assert (snapshot.num_turns, snapshot.num_turns_waiting) == (1, 0)
    one.end_turn("first")
    assert table.snapshot().budgets["pixels"].used_nbytes == 0


def test_who_holds_the_only_turn_is_told_which_of_its_requests_comes_next(
    table: SharedMediaTable, client_of: Callable[..., MediaCacheClient]
) -> None:
    client, other = client_of("visual-0"), client_of("visual-1")
    assert client.begin_turns([FIRST, SECOND], wait_s=0.0) == PermitsReply(come=("first",), following="second")
    thread, results = _in_thread(lambda: other.begin_turns([PermitRequest("third", 100, 3.0)], wait_s=30.0))
    until(lambda: table.snapshot().num_turns_waiting == 2)
    client.end_turn("first")
    assert (table.snapshot().num_turns, table.snapshot().num_turns_waiting) == (1, 1)
    client.end_turn("second")
    thread.join(20)
    assert results == [PermitsReply(come=("third",))]
    assert table.snapshot().max_turns == 1


def test_what_a_process_forgot_is_told_from_what_a_killed_one_held(
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
                client.leave()
            client.close()
        until(all_counted)
    (message,) = found
    assert message.startswith("http-0/")
    assert message.endswith("forgot 2 leases")
