"""A client process's connections to the cache server: one a thread, made again after a restart of the server.

The server ends a process's leases with its last connection. So one more connection, the anchor, carries no calls and
lives as long as the client, while threads come and go. A thread sends heartbeats on it: the server also ends the leases
of a process that it does not hear for long.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from mmserve.runtime.errors import Unavailable
from mmserve.runtime.retry_after import AFTER_CACHE_RESTART_S
from mmserve.runtime.shortage import out_of, shortage_of

CALL_MARGIN_S = 5.0
"""A call that takes this much longer than it may wait in the server is lost: raised as TimeoutError by connections.
Calls take milliseconds, but the server may be held up on a busy machine."""
BEAT_INTERVAL_S = 3.0
_RECONNECT_INTERVAL_S = 0.05
LOST = (EOFError, ConnectionError, FileNotFoundError, TimeoutError)
"""Raised by connections, when they are made or later, if there is no server or not the same any more."""
_REFUSED = (EOFError, ConnectionResetError, BrokenPipeError)
"""Raised when a connection that was made is closed before the client is registered."""
_MAX_REFUSALS = 3
"""A server that dies does this once or twice. More in a row are of a server without descriptors or threads for it."""

logger = logging.getLogger(__name__)


class Connection(Protocol):
    """A registered connection, used by one thread. The keyword ``timeout_s`` says how long a call may take."""

    def call(self, *args: Any, **kwargs: Any) -> Any: ...
    def beat(self) -> None: ...
    def close(self) -> None: ...


class OpenConnection(Protocol):
    """Makes a connection that is registered as ``owner``, within ``timeout_s``."""

    def __call__(self, owner: str, *, timeout_s: float) -> Connection: ...


class ConnectionPool:
    """Thread-safe. Its owner is ``owner`` with a suffix, so that a restarted process is a new owner."""

    def __init__(
        self,
        open_: OpenConnection,
        owner: str,
        reconnect_timeout_s: float,
        beat_interval_s: float = BEAT_INTERVAL_S,
        call_margin_s: float = CALL_MARGIN_S,
    ) -> None:
        self._open = open_
        self._call_margin_s = call_margin_s
        self._reconnect_timeout_s = reconnect_timeout_s
        self._owner = f"{owner}/{os.getpid()}.{secrets.token_hex(4)}"
        self._local = threading.local()
        self._lock = threading.Lock()
        self._anchor: Connection | None = None
        self._server = 0
        """Number of servers connected to so far. Each thread closes its own connection to an earlier one."""
        self._closed = False
        self._beat_interval_s = beat_interval_s
        self._stop_beats = threading.Event()
        self.is_silent = False
        """True since a call has timed out, until the server is seen to answer again."""
        self._trying = threading.Lock()

    def call(self, *args: Any, wait_s: float = 0.0) -> Any:
        """One round trip, repeated on a new connection if the old one was dead. ``wait_s``: how long the server may
        let the call wait. Raises Unavailable after reconnect_timeout_s without a server, or when it does not answer."""
        if self.is_silent:
            self._try_server()
        timeout_s = wait_s + self._call_margin_s
        connection, fresh = self._connection()
        try:
            return connection.call(*args, timeout_s=timeout_s)
        except LOST as error:
            self._lose(connection, error)
            if fresh or isinstance(error, TimeoutError):
                raise _unavailable() from error
        connection, _ = self._connection()
        try:
            return connection.call(*args, timeout_s=timeout_s)
        except LOST as error:
            self._lose(connection, error)
            raise _unavailable() from error

    def _try_server(self) -> None:
        """Find out whether a server that did not answer does so now. Raises Unavailable if not.

        One thread at a time tries, by registering; the others would only spend their time waiting.
        """
        if not self._trying.acquire(blocking=False):
            raise _unavailable()
        try:
            self._new().close()
        except TimeoutError as error:
            raise _unavailable() from error
        except LOST:
            pass  # it is gone: the call will wait for the next one
        finally:
            self._trying.release()
        self.is_silent = False

    @property
    def connected(self) -> bool:
        """True if this client is registered with the present server."""
        return self._anchor is not None

    def close(self) -> None:
        """End this thread's connection and the anchor. Those of other threads end with their thread."""
        self._closed = True
        self._stop_beats.set()
        with self._lock:
            anchor, self._anchor = self._anchor, None
        own, self._local.connection = getattr(self._local, "connection", None), None
        for connection in (own, anchor):
            if connection is not None:
                connection.close()

    def _connection(self) -> tuple[Connection, bool]:
        """This thread's connection to the current server, and True if it is new."""
        local = self._local
        if getattr(local, "server", None) == self._server and local.connection is not None:
            return local.connection, False
        if getattr(local, "connection", None) is not None:
            local.connection.close()
            local.connection = None
        local.connection, local.server = self._retrying(self._connect)
        return local.connection, True

    def _retrying(self, connect: Callable[[], tuple[Connection, int]]) -> tuple[Connection, int]:
        """Retry until a server listens. A restarted server listens within a second and is not announced to clients.

        Raises Shortage if there is a server that has no room for another connection.
        """
        deadline_s, num_refusals = time.monotonic() + self._reconnect_timeout_s, 0
        while True:
            try:
                return connect()
            except TimeoutError as error:
                self.is_silent = True
                raise _unavailable() from error
            except LOST as error:
                num_refusals = num_refusals + 1 if isinstance(error, _REFUSED) else 0
                if num_refusals >= _MAX_REFUSALS:
                    raise out_of("connections to its media cache") from error
                if self._closed or time.monotonic() >= deadline_s:
                    raise _unavailable() from error
            time.sleep(_RECONNECT_INTERVAL_S)

    def _connect(self) -> tuple[Connection, int]:
        server = self._ensure_anchor()
        return self._new(), server

    def _new(self) -> Connection:
        """A new connection. Raises Shortage if this process lacks what it needs, or one of LOST."""
        try:
            return self._open(self._owner, timeout_s=self._call_margin_s)
        except OSError as error:
            if (short := shortage_of(error)) is not None:
                raise short from error
            raise

    def _ensure_anchor(self) -> int:
        with self._lock:
            if self._closed:
                raise ConnectionError("the client is closed")
            if self.is_silent:
                raise TimeoutError("the server has not answered another thread")
            if self._anchor is None:
                self._anchor = self._new()
                self._start_beats(self._anchor)
            return self._server

    def _start_beats(self, anchor: Connection) -> None:
        try:
            threading.Thread(target=self._send_beats, args=(anchor,), name="cache-beat", daemon=True).start()
        except RuntimeError as error:  # no thread can be started
            self._anchor = None
            anchor.close()
            raise out_of("threads") from error

    def _send_beats(self, anchor: Connection) -> None:
        """Until the anchor is closed or its server gone, which the next call will find out as well."""
        while not self._stop_beats.wait(self._beat_interval_s) and self._anchor is anchor:
            try:
                anchor.beat()
            except TimeoutError:  # the server is held up; the beat is in its queue
                continue
            except (*LOST, OSError, ValueError):  # ValueError: closed by another thread
                return
            except Exception:  # an error of the server; its leases end if it does not hear from this process
                logger.exception("a heartbeat to the cache server failed")

    def _lose(self, connection: Connection, error: BaseException) -> None:
        """Drop a dead connection. Unless it merely timed out, its server is gone."""
        what = "it does not answer" if isinstance(error, TimeoutError) else type(error).__name__
        logger.warning("cache server: connection lost (%s)", what)
        self._local.connection = None
        connection.close()
        if isinstance(error, TimeoutError):
            self.is_silent = True
            return
        with self._lock:
            if self._local.server != self._server:
                return
            self._server += 1
            anchor, self._anchor = self._anchor, None
        if anchor is not None:
            anchor.close()


def _unavailable() -> Unavailable:
    return Unavailable("the media cache is restarting", retry_after_s=AFTER_CACHE_RESTART_S)
