"""Connections from one process to the cache server: one per thread, made again after a restart of the server.

The server frees what a process held when its last connection ends, so one more connection, which carries no
calls, lives as long as the client: threads may come and go. Knows no call by name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rpyc
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from mmserve.errors import Unavailable

MAX_WAIT_S = 600.0
"""Longest wait_s that one call may ask for; longer waits are cut to it."""
_CALL_TIMEOUT_S = MAX_WAIT_S + 20.0
_RETRY_AFTER_S = 1.0
_RECONNECT_INTERVAL_S = 0.05
_CONFIG = {"sync_request_timeout": _CALL_TIMEOUT_S, "allow_pickle": False, "close_catchall": True}
_LOST = (EOFError, ConnectionError, FileNotFoundError, TimeoutError)

logger = logging.getLogger(__name__)


class _Connection:
    """One rpyc connection with its bound remote methods cached: a call is one round trip."""

    def __init__(self, path: Path, owner: str) -> None:
        self._methods: dict[str, Callable[..., Any]] = {}
        # rpyc's own unix_connect compresses what is larger than 3000 bytes.
        channel = Channel(SocketStream.unix_connect(str(path)), compress=False)
        self._rpyc = rpyc.connect_channel(channel, config=_CONFIG)
        self.call("hello", owner)

    def call(self, method: str, *args: Any) -> Any:
        if method not in self._methods:
            self._methods[method] = getattr(self._rpyc.root, method)
        return self._methods[method](*args)

    def close(self) -> None:
        self._methods.clear()
        with contextlib.suppress(*_LOST, OSError):
            self._rpyc.close()

    def __del__(self) -> None:
        """A thread that ends drops its connection here, at once, rather than at some garbage collection."""
        if hasattr(self, "_rpyc"):
            self.close()


class Link:
    """Thread-safe. ``owner`` gets a suffix of its own, so that a restarted process is a new owner."""

    def __init__(self, path: Path, owner: str, patience_s: float) -> None:
        self._path = path
        self._patience_s = patience_s
        self._owner = f"{owner}/{os.getpid()}.{secrets.token_hex(4)}"
        self._local = threading.local()
        self._lock = threading.Lock()
        self._anchor: _Connection | None = None
        self._server = 0
        """Counts the servers met: connections to an earlier one are closed by the threads that own them."""
        self._closed = False

    def call(self, method: str, *args: Any) -> Any:
        """One RPC; once more on a new connection when the old one was found dead. Raises Unavailable, after
        patience_s without a server."""
        connection, fresh = self._connection()
        try:
            return connection.call(method, *args)
        except _LOST as error:
            self._lose(connection, error)
            if fresh or isinstance(error, TimeoutError):
                raise _unavailable() from error
        connection, _ = self._connection()
        try:
            return connection.call(method, *args)
        except _LOST as error:
            self._lose(connection, error)
            raise _unavailable() from error

    @property
    def connected(self) -> bool:
        """Has the present server heard of this client?"""
        return self._anchor is not None

    def close(self) -> None:
        """End this thread's connection and the anchor; other threads' end with their thread."""
        self._closed = True
        with self._lock:
            anchor, self._anchor = self._anchor, None
        for connection in (getattr(self._local, "connection", None), anchor):
            if connection is not None:
                connection.close()

    def _connection(self) -> tuple[_Connection, bool]:
        """This thread's connection to the current server, and whether it was made just now."""
        local = self._local
        if getattr(local, "server", None) == self._server and local.connection is not None:
            return local.connection, False
        if getattr(local, "connection", None) is not None:
            local.connection.close()
            local.connection = None
        local.connection, local.server = self._patiently(self._connect)
        return local.connection, True

    def _patiently(self, connect: Callable[[], tuple[_Connection, int]]) -> tuple[_Connection, int]:
        """A server that was just started again listens within a second; nothing would tell us but trying."""
        deadline_s = time.monotonic() + self._patience_s
        while True:
            try:
                return connect()
            except _LOST as error:
                if self._closed or time.monotonic() >= deadline_s:
                    raise _unavailable() from error
            time.sleep(_RECONNECT_INTERVAL_S)

    def _connect(self) -> tuple[_Connection, int]:
        server = self._hold_anchor()
        return _Connection(self._path, self._owner), server

    def _hold_anchor(self) -> int:
        with self._lock:
            if self._closed:
                raise ConnectionError("the client is closed")
            if self._anchor is None:
                self._anchor = _Connection(self._path, self._owner)
            return self._server

    def _lose(self, connection: _Connection, error: BaseException) -> None:
        """Drop a dead connection; unless it merely timed out, the server it led to is gone."""
        logger.warning("cache server: connection lost (%s)", type(error).__name__)
        self._local.connection = None
        connection.close()
        if isinstance(error, TimeoutError):
            return
        with self._lock:
            if self._local.server != self._server:
                return
            self._server += 1
            anchor, self._anchor = self._anchor, None
        if anchor is not None:
            anchor.close()


def _unavailable() -> Unavailable:
    return Unavailable("the media cache is restarting", retry_after_s=_RETRY_AFTER_S)
