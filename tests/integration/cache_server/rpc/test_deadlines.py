"""Calls to a server that does not answer: each has a deadline, and they do not queue up behind each other."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.runtime.errors import Overloaded, Shortage, Unavailable
from tests.fakes.pictures.cache import alloc_item, until

ITEMS = [alloc_item("cat")]
_PATIENCE_S = 60.0
"""Margin of calls that must be answered: a machine with much other work is no error."""
_HELD_UP_S = 0.15
"""Margin of calls that cannot be answered."""
_MARGINS_S = (0.15, 0.6, 2.4)
"""A longer one is tried if an answer came too late for the shorter one."""


@pytest.fixture
def client(endpoints: Endpoints, table: SharedMediaTable, batched: bool) -> Iterator[MediaCacheClient]:
    made = connect(endpoints, "http-0", batched=batched, reconnect_timeout_s=0.1, call_margin_s=_PATIENCE_S)
    yield made
    made.close()


@contextlib.contextmanager
def _held_up(client: MediaCacheClient, table: SharedMediaTable) -> Iterator[None]:
    """Within the block the server answers no call, and the client's calls do not wait for it for long."""
    with table._lock, _margin(client, _HELD_UP_S):
        yield


@contextlib.contextmanager
def _margin(client: MediaCacheClient, margin_s: float) -> Iterator[None]:
    client._pool._call_margin_s = margin_s
    try:
        yield
    finally:
        client._pool._call_margin_s = _PATIENCE_S


def test_a_call_that_is_not_answered_raises_and_later_ones_succeed(
    client: MediaCacheClient, table: SharedMediaTable
) -> None:
    client.alloc("r", ITEMS, wait_s=0)
    with _held_up(client, table):
        for _ in range(2):
            with pytest.raises(Unavailable):
                client.alloc("r", ITEMS, wait_s=0)
            assert client.is_silent
    until(lambda: _answers(client))
    assert client.alloc("r", ITEMS, wait_s=0)[0].state == "write"
    assert not client.is_silent


@pytest.mark.parametrize("step_s", [86_400, -86_400], ids=["forward", "backward"])
def test_a_clock_that_is_set_changes_no_deadline(
    client: MediaCacheClient, table: SharedMediaTable, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    client.alloc("writer", ITEMS, wait_s=0)
    (record,) = client.alloc("reader", ITEMS, wait_s=0)
    assert client.get_items_data("reader", [record.item_id], wait_s=0) == ("wait",)
    now_s, jumps = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: now_s() + step_s * next(jumps))
    assert client.get_items_data("reader", [record.item_id], wait_s=0.3) == ("wait",)
    with _held_up(client, table), pytest.raises(Unavailable):
        client.get_items_data("reader", [record.item_id], wait_s=0)


def _answers(client: MediaCacheClient) -> bool:
    try:
        client.release("nothing")
    except Unavailable:
        return False
    return True


def test_the_time_that_a_call_may_wait_is_not_cut_short(client: MediaCacheClient) -> None:
    client.alloc("all", [alloc_item(name) for name in "abcd"], wait_s=0)
    _waits_longer_than_the_margin(client, lambda wait_s: _is_full(client, wait_s))
    client.release("all")
    client.release("r")
    assert client.alloc("writer", ITEMS, wait_s=0)[0].state == "write"
    (record,) = client.alloc("reader", ITEMS, wait_s=0)
    _waits_longer_than_the_margin(
        client, lambda wait_s: client.get_items_data("reader", [record.item_id], wait_s=wait_s) == ("wait",)
    )


def _waits_longer_than_the_margin(client: MediaCacheClient, call: Callable[[float], bool]) -> None:
    """A call that is cut short raises Unavailable with every margin, one that is late with the short ones only."""
    for margin_s in _MARGINS_S:
        with _margin(client, margin_s), contextlib.suppress(Unavailable):
            assert call(3 * margin_s)
            return
        until(lambda: _answers(client))
    pytest.fail("calls that may wait are cut short")


def _is_full(client: MediaCacheClient, wait_s: float) -> bool:
    with contextlib.suppress(Overloaded):
        client.alloc("r", ITEMS, wait_s=wait_s)
        return False
    return True


def test_while_the_server_is_silent_one_call_at_a_time_tries_it(
    client: MediaCacheClient, table: SharedMediaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, trying, most = threading.Lock(), 0, 0
    pool = client._pool
    opened = pool._open

    def counted(owner: str, *, timeout_s: float) -> object:
        nonlocal trying, most
        with lock:
            trying += 1
            most = max(most, trying)
        try:
            return opened(owner, timeout_s=timeout_s)
        finally:
            with lock:
                trying -= 1

    client.alloc("r", ITEMS, wait_s=0)
    monkeypatch.setattr(pool, "_open", counted)
    with _held_up(client, table):
        with pytest.raises(Unavailable):
            client.release("x")
        with ThreadPoolExecutor(8) as threads:
            failures = [call.exception() for call in [threads.submit(client.release, str(n)) for n in range(24)]]
    assert all(isinstance(failure, Unavailable) for failure in failures)
    assert most == 1


def test_a_server_that_died_while_it_was_silent_is_replaced(
    client: MediaCacheClient, table: SharedMediaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = client._pool
    opened = pool._open
    with _held_up(client, table), pytest.raises(Unavailable):
        client.release("x")

    def gone(owner: str, *, timeout_s: float) -> object:
        monkeypatch.setattr(pool, "_open", opened)
        raise ConnectionRefusedError

    until(lambda: not table._lock.locked())
    monkeypatch.setattr(pool, "_open", gone)
    client.release("x")
    assert not client.is_silent


def test_a_server_that_closes_each_new_connection_is_short_of_something(endpoints: Endpoints, batched: bool) -> None:
    client = connect(endpoints, "http-0", batched=batched, reconnect_timeout_s=600, call_margin_s=600)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(endpoints.cache_calls if batched else endpoints.cache_rpc))
        listening.listen()
        closing = threading.Thread(target=_close_each, args=(listening,))
        closing.start()
        with pytest.raises(Shortage) as caught:
            client.alloc("r", ITEMS, wait_s=0)
        listening.shutdown(socket.SHUT_RDWR)
        closing.join()
    assert caught.value.retry_after_s
    assert not client.is_silent
    client.close()


def _close_each(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            listening.accept()[0].close()
