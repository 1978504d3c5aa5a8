"""The table's doors: v1 and v2, each on a socket of its own, side by side."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator

from mmserve.cache_server.rpc.disconnect_watcher import DisconnectWatcher
from mmserve.cache_server.rpc.listener import Listener
from mmserve.cache_server.rpc.v1 import service as service_v1
from mmserve.cache_server.rpc.v2 import service as service_v2
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.ipc.endpoints import Endpoints


@contextlib.contextmanager
def serving(table: SharedMediaTable, endpoints: Endpoints) -> Iterator[Callable[[float], None]]:
    """Both listen until the context ends, which ends all connections.

    Yields a wait: it sleeps that many seconds while both listen, and raises RuntimeError when one has ended by itself.
    """
    ended = threading.Event()

    def wait(timeout_s: float) -> None:
        if ended.wait(timeout_s):
            raise RuntimeError("a listener of the cache server has ended")

    with contextlib.closing(DisconnectWatcher()) as hangups:
        v1 = functools.partial(service_v1.serve, table, hangups)
        v2 = functools.partial(service_v2.serve, table, hangups)
        with Listener(endpoints.cache_rpc, v1, ended.set), Listener(endpoints.cache_calls, v2, ended.set):
            yield wait
