"""The server's side of connections: one thread with an epoll loop for all of them.

Listening sockets, v2's connections and the disconnects of v1's connections are event handlers of the same loop. v1's
calls run in one thread per connection, as rpyc requires.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.shared_table import SharedMediaTable

Timer = tuple[float, int]
logger = logging.getLogger(__name__)


class EventHandler(Protocol):
    """Called in the loop's thread. An exception from ``on_event`` closes this handler only."""

    @property
    def fd(self) -> int: ...
    def on_event(self) -> None: ...
    def close(self) -> None:
        """Remove the handler from the loop and close its descriptor. Also called when the loop ends."""


class ConnectionLoop:
    """``with``: the thread runs inside the block; all handlers are closed at its end."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """``on_end``: called in the thread when it ends, for whatever reason."""
        self._on_end = on_end
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._epoll.register(self._wake_fd, select.EPOLLIN)
        self._handlers: dict[int, EventHandler] = {}
        self._soon: deque[tuple[EventHandler, Callable[[], None]]] = deque()
        self._timers: list[tuple[Timer, Callable[[], None]]] = []
        """Ascending."""
        self._num_timers = 0
        self._is_stopping = False
        self._num_turns = 0
        self._num_turns_seen = -1
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)

    def __enter__(self) -> ConnectionLoop:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping = True
        os.eventfd_write(self._wake_fd, 1)
        self._thread.join()
        for handler in list(self._handlers.values()):
            handler.close()
        self._epoll.close()
        os.close(self._wake_fd)

    # From any thread

    def add(self, handler: EventHandler, events: int) -> None:
        """Watch the handler's descriptor. Raises OSError without memory, or for a file that epoll cannot watch."""
        self._handlers[handler.fd] = handler
        try:
            self._epoll.register(handler.fd, events)
        except OSError:
            del self._handlers[handler.fd]
            raise

    def call_soon(self, handler: EventHandler, callback: Callable[[], None]) -> None:
        """Call ``callback`` in the loop's thread, unless the handler is closed by then."""
        self._soon.append((handler, callback))
        if threading.current_thread() is not self._thread:
            os.eventfd_write(self._wake_fd, 1)

    def has_turned(self) -> bool:
        """True if the thread has gone round since the last call. Wakes it, so that it should have by the next one."""
        num_turns = self._num_turns
        has_turned, self._num_turns_seen = num_turns != self._num_turns_seen, num_turns
        os.eventfd_write(self._wake_fd, 1)
        return has_turned

    # From the loop's thread

    def modify(self, handler: EventHandler, events: int) -> None:
        self._epoll.modify(handler.fd, events)

    def remove(self, handler: EventHandler) -> None:
        del self._handlers[handler.fd]
        self._epoll.unregister(handler.fd)

    def call_at(self, when_s: float, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` at ``when_s`` (time.monotonic)."""
        self._num_timers += 1
        timer = (when_s, self._num_timers)
        insort(self._timers, (timer, callback), key=_timer_of)
        return timer

    def cancel(self, timer: Timer) -> None:
        """Cancel a timer. No effect if it has been called."""
        index = bisect_left(self._timers, timer, key=_timer_of)
        if index < len(self._timers) and self._timers[index][0] == timer:
            del self._timers[index]

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._wait_for_events()
                self._num_turns += 1
                if self._timers:
                    self._call_due_timers()
                while self._soon:
                    handler, callback = self._soon.popleft()
                    self._call(handler, callback)
        finally:
            self._on_end()

    def _wait_for_events(self) -> None:
        timeout_s = max(0.0, self._timers[0][0][0] - time.monotonic()) if self._timers else -1
        ready = [self._handlers.get(fd) for fd, _ in self._epoll.poll(timeout_s)]
        for handler in ready:
            if handler is None:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake_fd)
            else:
                self._call(handler, handler.on_event)

    def _call_due_timers(self) -> None:
        while self._timers and self._timers[0][0][0] <= time.monotonic():
            _, callback = self._timers.pop(0)
            callback()

    def _call(self, handler: EventHandler, callback: Callable[[], None]) -> None:
        """Skips a handler that another one has closed after the event."""
        if self._handlers.get(handler.fd) is not handler:
            return
        try:
            callback()
        except (EOFError, ConnectionError) as error:
            logger.debug("a connection has ended (%s)", error)
            handler.close()
        except Exception:  # one client's trouble ends its connection, not the others'
            logger.exception("a connection was ended")
            handler.close()


def _timer_of(entry: tuple[Timer, Any]) -> Timer:
    return entry[0]


class DisconnectWatch:
    """Calls ``on_disconnect`` once, in the loop's thread, when either side has closed the connection.

    Watches a duplicate of the descriptor, so that a number that the kernel gives out again is not mistaken for it.
    """

    def __init__(self, loop: ConnectionLoop, fd: int, on_disconnect: Callable[[], None]) -> None:
        """Raises OSError for want of descriptors or memory; nothing is watched then."""
        self.fd = os.dup(fd)
        self._loop = loop
        self._on_disconnect = on_disconnect
        try:
            loop.add(self, select.EPOLLRDHUP)
        except OSError:
            os.close(self.fd)
            raise

    def on_event(self) -> None:
        self.close()
        self._on_disconnect()

    def close(self) -> None:
        self._loop.remove(self)
        os.close(self.fd)


class ClientSession:
    """One registered connection of an owner. The owner is alive while it has one."""

    def __init__(self, table: SharedMediaTable, owner: str) -> None:
        """Raises ValueError if the owner's name is empty."""
        if not owner:
            raise ValueError("register with a name")
        self.owner = owner
        self._table = table
        self._ended = threading.Lock()
        table.connect(owner)

    def begin_call(self) -> None:
        """Call it before each call of the table."""
        self._table.faults.pass_through()

    def lease(self, request_id: str) -> Lease:
        """The lease of one of the owner's requests. Raises ValueError if the request's name is empty."""
        if not request_id:
            raise ValueError("name a request")
        return Lease(self.owner, request_id)

    def end(self) -> None:
        """End the session; only the first call has an effect. Any thread may call it."""
        if self._ended.acquire(blocking=False):
            self._table.disconnect(self.owner)
