"""Accepts the cache server's connections, also while it has no descriptors for them."""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

from mmserve.cache_server.rpc.connections import ConnectionLoop
from mmserve.runtime.shortage import OUT_OF_RESOURCES, SpareDescriptor

_RETRY_S = 0.1
logger = logging.getLogger(__name__)


class Listener:
    """A Unix socket in the loop. ``on_connect`` is given each new connection and owns it.

    Without descriptors for them, connections are closed as soon as they are made.
    """

    def __init__(
        self,
        loop: ConnectionLoop,
        path: Path,
        on_connect: Callable[[socket.socket], object],
        on_end: Callable[[], None],
    ) -> None:
        """``on_end``: called when no more connections are accepted, for whatever reason."""
        self._loop = loop
        self._path = path
        self._on_connect = on_connect
        self._on_end = on_end
        self._is_short = False
        self._spare = SpareDescriptor()
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        self._socket.bind(str(path))
        self._socket.listen()
        loop.add(self, select.EPOLLIN)

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def on_event(self) -> None:
        try:
            connected, _ = self._socket.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                self._refuse_or_pause(error)
                return
            logger.error("%s: no more connections (%s)", self._path.name, error)
            self.close()
            return
        self._is_short = False
        self._spare.refill()
        connected.setblocking(True)
        try:
            self._on_connect(connected)
        except Exception:  # the boundary of one connection
            logger.exception("%s: a connection was not served", self._path.name)
            connected.close()

    def close(self) -> None:
        self._loop.remove(self)
        self._socket.close()
        self._spare.close()
        self._path.unlink(missing_ok=True)
        self._on_end()

    def _refuse_or_pause(self, error: OSError) -> None:
        """Close the connection at once, so that its client can say what is missing instead of waiting for an answer.
        If not even that is possible, connections wait."""
        if not self._is_short:
            logger.error("%s: no new connections for now (%s)", self._path.name, error)
        self._is_short = True
        try:
            with self._spare.lent():
                connected, _ = self._socket.accept()
                connected.close()
        except BlockingIOError:
            return
        except OSError:
            self._pause()

    def _pause(self) -> None:
        """Stop accepting for _RETRY_S. The kernel sends no event when descriptors are free again."""
        self._loop.modify(self, 0)
        resume: Callable[[], None] = lambda: self._loop.modify(self, select.EPOLLIN)  # noqa: E731
        self._loop.call_at(time.monotonic() + _RETRY_S, lambda: self._loop.call_soon(self, resume))
