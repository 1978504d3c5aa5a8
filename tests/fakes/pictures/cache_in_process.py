"""The cache server without sockets: the real table and the calls of v1 and v2, in the test's own threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from mmserve.cache_server.client import MediaCacheClient
from mmserve.cache_server.rpc.connections import ClientSession
from mmserve.cache_server.rpc.v1.client import ItemwiseCalls
from mmserve.cache_server.rpc.v1.service import CacheService
from mmserve.cache_server.rpc.v2 import service as service_v2
from mmserve.cache_server.rpc.v2.client import BatchedCalls
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.httpserver.call import AllocVersion


class _V1Connection:
    def __init__(self, table: SharedMediaTable, owner: str) -> None:
        self._service = CacheService(table, lambda fd, on_disconnect: None)
        self._service._fd = -1
        self._service.exposed_register(owner)

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._service, f"exposed_{method}")(*args)

    def close(self) -> None:
        self._service.on_disconnect(None)


class _V2Connection:
    def __init__(self, table: SharedMediaTable, owner: str) -> None:
        self._table = table
        self._session = ClientSession(table, owner)

    def call(self, request: bytes) -> bytes:
        return service_v2.encoded(service_v2.started(self._table, self._session, request))

    def close(self) -> None:
        self._session.end()


class InProcessConnectionPool:
    """Use in place of a ConnectionPool; one connection per thread. ``at_call(name)`` runs before each call."""

    def __init__(self, connect: Callable[[], _V1Connection | _V2Connection]) -> None:
        self._connect = connect
        self._local = threading.local()
        self._connections: list[_V1Connection | _V2Connection] = []
        self.calls: list[str] = []
        self.is_silent = False
        self.at_call: Callable[[str], None] = lambda name: None

    def call(self, *args: Any, wait_s: float = 0.0) -> Any:
        name = msgspec.msgpack.decode(args[0])["t"] if isinstance(args[0], bytes) else args[0]
        self.calls.append(name)
        self.at_call(name)
        if not hasattr(self._local, "connection"):
            self._local.connection = self._connect()
            self._connections.append(self._local.connection)
        return self._local.connection.call(*args)

    @property
    def connected(self) -> bool:
        return bool(self._connections)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


_numbers = itertools.count()


def in_process_client(
    table: SharedMediaTable, alloc_version: AllocVersion
) -> tuple[MediaCacheClient, InProcessConnectionPool]:
    """A client of the table, registered as an owner of its own, and its connection pool."""
    owner = f"httpserver-0/{next(_numbers)}"
    pool = InProcessConnectionPool(lambda: (_V2Connection if alloc_version == "v2" else _V1Connection)(table, owner))
    calls = BatchedCalls(pool) if alloc_version == "v2" else ItemwiseCalls(pool)  # type: ignore[arg-type]
    return MediaCacheClient(pool, calls), pool  # type: ignore[arg-type]
