"""Clients that die, and servers that restart."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.cache_server.owners import Owners
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.runtime.errors import Unavailable
from tests.fakes.pictures.cache import alloc_item, serving_cache, until

Connect = Callable[..., MediaCacheClient]
CAT = alloc_item("cat")

HOLDER = """
import sys, threading
from mmserve.cache_server.client import connect
from mmserve.ipc.links.endpoints import Endpoints
from tests.fakes.pictures.cache import alloc_item
client = connect(Endpoints(sys.argv[1]), "http-9", batched=sys.argv[2] == "True")
client.alloc("held", [alloc_item("cat"), alloc_item("dog")], wait_s=0)
# A second connection blocks in a call. The server must notice the process's death in spite of it.
def wait():
    client.alloc("queued", [alloc_item(str(n)) for n in range(4)], wait_s=50)
threading.Thread(target=wait, daemon=True).start()
print("held", flush=True)
sys.stdin.read()
"""


def test_leases_of_a_killed_process_end_even_while_its_call_waits(
    table: SharedMediaTable, endpoints: Endpoints, client_of: Connect, batched: bool
) -> None:
    command = [sys.executable, "-c", HOLDER, str(endpoints.run_dir), str(batched)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    until(lambda: table.snapshot().num_waiting == 1)
    waiter = client_of()
    (record,) = waiter.alloc("waiter", [CAT], wait_s=0)
    assert record.state == "wait"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.get_items_data, "waiter", [record.item_id], wait_s=30)
        os.kill(holder.pid, signal.SIGKILL)
        assert waiting.result(30) == ("write",)
    until(lambda: table.snapshot().num_waiting == 0)
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    assert table.snapshot().num_leases == 1


def test_leases_outlive_the_threads_that_asked_for_them(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    thread = threading.Thread(target=lambda: client.alloc("r", [CAT], wait_s=0))
    thread.start()
    thread.join()
    assert client.alloc("r", [CAT], wait_s=0)[0].state == "write"
    assert table.snapshot().num_leases == 1


def test_closing_the_client_ends_its_leases(table: SharedMediaTable, client_of: Connect) -> None:
    client = client_of()
    client.alloc("r", [CAT], wait_s=0)
    client.close()
    until(lambda: table.snapshot().num_leases == 0)
    with pytest.raises(Unavailable):
        client.release("r")


def test_without_a_server_calls_are_unavailable(endpoints: Endpoints, client_of: Connect) -> None:
    with pytest.raises(Unavailable):
        client_of().alloc("r", [CAT], wait_s=0)


def test_after_a_restart_the_client_goes_on_and_old_names_are_unknown(
    endpoints: Endpoints, arena: Arena, client_of: Connect
) -> None:
    client = client_of()
    with serving_cache(endpoints, arena):
        (old,) = client.alloc("r", [CAT], wait_s=0)
        assert old.data is not None
        arena.write(old.data, bytes(100))
    with pytest.raises(Unavailable):
        client.set_items_data("r", [old.item_id])
    with serving_cache(endpoints, arena):
        client.set_items_data("r", [old.item_id])
        assert client.get_items_data("r", [old.item_id], wait_s=10) == ("gone",)
        assert client.get_items_embed([old.item_id]) == ("gone",)
        assert client.set_items_embed([old.item_id], [True]) == ("gone",)
        with pytest.raises(StaleHandle):
            arena.readable(old.data)
        with pytest.raises(StaleHandle):
            arena.write(old.data, bytes(100))
        (new,) = client.alloc("r", [CAT], wait_s=0)
        assert new.state == "write"
        assert new.token_start != old.token_start


def test_a_restart_between_two_calls_is_not_noticed(endpoints: Endpoints, arena: Arena, client_of: Connect) -> None:
    client = client_of()
    with serving_cache(endpoints, arena):
        client.alloc("r", [CAT], wait_s=0)
    with serving_cache(endpoints, arena) as table:
        assert client.alloc("r", [CAT], wait_s=0)[0].state == "write"
        assert table.snapshot().num_leases == 1


def test_a_call_waits_for_a_server_that_is_being_started_again(endpoints: Endpoints, arena: Arena) -> None:
    client = connect(endpoints, "http-0", batched=True, reconnect_timeout_s=20)
    with serving_cache(endpoints, arena):
        client.alloc("r", [CAT], wait_s=0)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(client.alloc, "s", [CAT], wait_s=0)
        with serving_cache(endpoints, arena):
            assert calling.result(30)[0].state == "write"
    client.close()


STOPPED = """
import sys
from mmserve.cache_server.client import connect
from mmserve.ipc.links.endpoints import Endpoints
from tests.fakes.pictures.cache import alloc_item
client = connect(Endpoints(sys.argv[1]), "http-9", batched=sys.argv[2] == "True", beat_interval_s=0.02)
items = [alloc_item("cat"), alloc_item("dog")]
records = client.alloc("held", items, wait_s=0)
print("held", flush=True)
sys.stdin.readline()
print(*client.get_items_data("held", [record.item_id for record in records], wait_s=0), flush=True)
print(*(record.state for record in client.alloc("held", items, wait_s=9)), flush=True)
sys.stdin.read()
"""


def test_leases_of_a_stopped_process_end_and_it_allocates_again(
    endpoints: Endpoints, arena: Arena, batched: bool
) -> None:
    with serving_cache(endpoints, arena, owners=Owners(silent_s=0.4)) as table:
        command = [sys.executable, "-c", STOPPED, str(endpoints.run_dir), str(batched)]
        stopped = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert stopped.stdout is not None
        assert stopped.stdin is not None
        assert stopped.stdout.readline() == "held\n"

        def leases() -> int:
            table.end_silent()
            return table.snapshot().num_leases

        until(lambda: leases() != 2 or table._owners._ran_s > 1.0)
        assert leases() == 2, "a living process keeps its leases"
        os.kill(stopped.pid, signal.SIGSTOP)
        until(lambda: leases() == 0)
        other = connect(endpoints, "http-0", batched=batched, beat_interval_s=0.02)
        other.alloc("all", [alloc_item(f"{number}") for number in range(4)], wait_s=0)
        os.kill(stopped.pid, signal.SIGCONT)
        stopped.stdin.write("\n")
        stopped.stdin.flush()
        assert stopped.stdout.readline() == "gone gone\n"
        until(lambda: table.snapshot().num_waiting == 1)
        other.release("all")
        assert stopped.stdout.readline() == "write write\n"
        until(lambda: leases() != 2 or table._owners._ran_s > 2.0)
        assert leases() == 2, "its heartbeats are heard again"
        other.close()
        stopped.communicate()
