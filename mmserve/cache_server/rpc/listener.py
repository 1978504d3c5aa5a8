"""A Unix socket with a thread for each connection. Knows nothing of what is said on them."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path

_GOODBYE_S = 2.0
"""How long a connection's thread may take to end once its peer seems gone; a call that waits is woken by that."""
_SHORT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Of descriptors or memory, which is no reason to hang up on those who are connected."""
_SHORT_S = 0.1
logger = logging.getLogger(__name__)


class Listener:
    """``serve`` talks on one connection until that ends. ``with``: listens on entry, ends everything on exit."""

    def __init__(self, path: Path, serve: Callable[[socket.socket], None], on_end: Callable[[], None]) -> None:
        """``on_end``: called when no more connections are accepted, for whatever reason."""
        self._path = path
        self._serve = serve
        self._on_end = on_end
        self._socket = socket.socket(socket.AF_UNIX)
        self._ending = threading.Event()
        self._is_short = False
        self._accepting = threading.Thread(target=self._accept, name=path.name, daemon=True)
        self._connections: dict[threading.Thread, socket.socket] = {}

    def __enter__(self) -> Listener:
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        self._socket.listen()
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        _hang_up(self._socket)
        self._accepting.join()
        self._socket.close()
        self._path.unlink(missing_ok=True)
        left = dict(self._connections)
        for connected in left.values():
            _hang_up(connected)
        for thread in left:
            thread.join(_GOODBYE_S)

    def _accept(self) -> None:
        try:
            while True:
                if (connected := self._accepted()) is None:
                    continue
                thread = threading.Thread(target=self._run, args=(connected,), name=self._path.name, daemon=True)
                self._connections[thread] = connected
                thread.start()
        except OSError as error:
            if error.errno != errno.EINVAL:  # which is what our own end looks like
                logger.error("%s: no more connections (%s)", self._path.name, error)
        finally:
            self._on_end()

    def _accepted(self) -> socket.socket | None:
        """The next connection; None when there is nothing left for one just now. Raises OSError at our own end."""
        try:
            connected, _ = self._socket.accept()
        except OSError as error:
            if error.errno not in _SHORT:
                raise
            if not self._is_short:
                logger.error("%s: connections have to wait (%s)", self._path.name, error)
            self._is_short = True
            # The kernel wakes nobody when descriptors are free again.
            if self._ending.wait(_SHORT_S):
                raise
            return None
        self._is_short = False
        return connected

    def _run(self, connected: socket.socket) -> None:
        try:
            with connected:
                try:
                    self._serve(connected)
                finally:
                    _hang_up(connected)
        except (EOFError, ConnectionError) as error:
            logger.debug("%s: a connection has ended (%s)", self._path.name, error)
        except Exception:  # one client's trouble ends its connection, not the others'
            logger.exception("%s: a connection was ended", self._path.name)
        finally:
            del self._connections[threading.current_thread()]


def _hang_up(connected: socket.socket) -> None:
    """Both sides see the end, whoever else has a duplicate of the descriptor or waits on it."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
