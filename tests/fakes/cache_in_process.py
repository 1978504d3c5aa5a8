"""The cache server without its socket: the real table and both generations of calls, in the test's own threads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

from mmserve.cache_server.client import MediaCacheClient
from mmserve.cache_server.client_v1 import ItemwiseCalls
from mmserve.cache_server.client_v2 import BatchedCalls
from mmserve.cache_server.service import CacheService
from mmserve.cache_server.table import Table
from mmserve.httpserver.lane import Generation


class _NoHangups:
    def watch(self, fd: int, on_hangup: Callable[[], None]) -> None:
        return None


class InProcessLink:
    """In place of a Link: a connection a thread, as there. ``at_call(method, args)`` runs before each call."""

    def __init__(self, table: Table, owner: str) -> None:
        self._table = table
        self._owner = owner
        self._local = threading.local()
        self._connections: list[CacheService] = []
        self.calls: list[str] = []
        self.at_call: Callable[[str, tuple[Any, ...]], None] = lambda method, args: None

    def call(self, method: str, *args: Any) -> Any:
        self.calls.append(method)
        self.at_call(method, args)
        return getattr(self._connection(), f"exposed_{method}")(*args)

    @property
    def connected(self) -> bool:
        return bool(self._connections)

    def close(self) -> None:
        for connection in self._connections:
            connection.on_disconnect(None)

    def _connection(self) -> CacheService:
        if not hasattr(self._local, "connection"):
            connection = CacheService(self._table, _NoHangups())  # type: ignore[arg-type]
            connection._fd = -1
            connection.exposed_hello(self._owner)
            self._connections.append(connection)
            self._local.connection = connection
        connection = self._local.connection
        assert isinstance(connection, CacheService)
        return connection


_numbers = itertools.count()


def in_process_client(table: Table, generation: Generation) -> tuple[MediaCacheClient, InProcessLink]:
    """A client of the table, an owner of its own, and its link."""
    link = InProcessLink(table, f"httpserver-0/{next(_numbers)}")
    calls = BatchedCalls(link) if generation == "v2" else ItemwiseCalls(link)  # type: ignore[arg-type]
    return MediaCacheClient(link, calls), link  # type: ignore[arg-type]
