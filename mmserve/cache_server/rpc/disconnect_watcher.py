"""Tells at once when the other side of a connection is gone, even while a call of it waits.

Watches duplicates of the descriptors, so that a number the kernel gives out again is never mistaken.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


class DisconnectWatcher:
    """One thread, asleep until a peer hangs up or ``close`` is called."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._stop = os.eventfd(0)
        self._epoll.register(self._stop, select.EPOLLIN)
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._thread = threading.Thread(target=self._run, name="hangups", daemon=True)
        self._thread.start()

    def watch(self, fd: int, on_hangup: Callable[[], None]) -> None:
        """Call ``on_hangup`` once, from the watching thread, when either side has closed the connection. Raises OSError
        for want of descriptors or memory; nothing is watched then."""
        twin = os.dup(fd)
        with self._lock:
            self._callbacks[twin] = on_hangup
        try:
            self._epoll.register(twin, select.EPOLLRDHUP | select.EPOLLONESHOT)
        except OSError:
            with self._lock:
                del self._callbacks[twin]
            os.close(twin)
            raise

    def close(self) -> None:
        """End the thread; connections still watched are forgotten."""
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        self._epoll.close()
        for fd in (self._stop, *self._callbacks):
            os.close(fd)

    def _run(self) -> None:
        while True:
            for fd, _ in self._epoll.poll():
                if fd == self._stop:
                    return
                with self._lock:
                    on_hangup = self._callbacks.pop(fd)
                os.close(fd)
                on_hangup()
