"""Both transports, v1 and v2, each on a socket of its own, side by side over one table."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from mmserve.cache_server.rpc.connections import ConnectionLoop, DisconnectWatch
from mmserve.cache_server.rpc.listener import Listener
from mmserve.cache_server.rpc.v1.service import CacheService, ServiceThreads
from mmserve.cache_server.rpc.v2.service import ServedConnection
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.ipc.links.endpoints import Endpoints


@contextlib.contextmanager
def serving(table: SharedMediaTable, endpoints: Endpoints) -> Iterator[Callable[[float], bool]]:
    """Both listen until the context ends, which ends all connections.

    Yields a wait: it sleeps that many seconds while both listen, and raises RuntimeError when one has ended by itself.
    It returns False if the thread that serves them has been stuck since the last wait.
    """
    ended = threading.Event()

    with ConnectionLoop(ended.set) as loop:

        def wait(timeout_s: float) -> bool:
            if ended.wait(timeout_s):
                raise RuntimeError("a listener of the cache server has ended")
            return loop.has_turned()

        threads = ServiceThreads(lambda: CacheService(table, lambda fd, on_end: DisconnectWatch(loop, fd, on_end)))
        with contextlib.closing(threads):
            Listener(loop, endpoints.cache_rpc, threads.serve, ended.set)
            Listener(loop, endpoints.cache_calls, lambda connected: ServedConnection(loop, table, connected), ended.set)
            yield wait
