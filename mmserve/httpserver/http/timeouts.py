"""Timers of one connection: when its client must send or read something. Nothing here runs while an answer is made."""

from __future__ import annotations

import asyncio
from typing import Literal

from mmserve.httpserver.http.connections import CloseReason, OpenConnections

Wait = Literal["idle", "head", "body"]
"""What a connection waits for: a request, the rest of a head, the rest of a body whose request was answered."""
_REASONS: dict[Wait, CloseReason] = {"idle": "idle", "head": "head_timeout", "body": "body_timeout"}


class ConnectionTimeouts:
    """The timers of one connection. ``connections`` has the limits and counts the connections that a timer ends."""

    def __init__(self, transport: asyncio.Transport, connections: OpenConnections) -> None:
        limits = connections.limits
        self._transport = transport
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._seconds: dict[Wait, float] = {"idle": limits.idle_s, "head": limits.head_s, "body": limits.body_s}
        self._wait: Wait | None = None
        self._receive_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self._unsent_nbytes = 0

    def wait_for(self, wait: Wait | None) -> None:
        """Close the connection unless this is called with something else in time. The same again extends nothing."""
        if wait == self._wait:
            return
        self._wait = wait
        if self._receive_timer is not None:
            self._receive_timer.cancel()
        self._receive_timer = None if wait is None else self._loop.call_later(self._seconds[wait], self._close)

    def watch_unread(self) -> None:
        """From now on, end the connection if its client reads nothing of what waits to be sent.

        Call when no more is written until some of it was read, or until the next answer.
        """
        self.ignore_unread()
        if self._transport.get_write_buffer_size():
            self._start_unread_timer()

    def ignore_unread(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None

    def cancel(self) -> None:
        """The connection has ended."""
        self.wait_for(None)
        self.ignore_unread()

    def _close(self) -> None:
        assert self._wait is not None
        self._connections.count_close(_REASONS[self._wait])
        self._transport.close()
        self.watch_unread()

    def _start_unread_timer(self) -> None:
        self._unsent_nbytes = self._transport.get_write_buffer_size()
        self._unread_timer = self._loop.call_later(self._connections.limits.unread_s, self._check_unread)

    def _check_unread(self) -> None:
        self._unread_timer = None
        unsent_nbytes = self._transport.get_write_buffer_size()
        if not unsent_nbytes:
            return
        if unsent_nbytes < self._unsent_nbytes:
            return self._start_unread_timer()
        self._connections.count_close("unread")
        self._transport.abort()
