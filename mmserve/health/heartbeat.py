"""Sends heartbeats from a process's main loop to the health server, at most one a second."""

from __future__ import annotations

import time

from mmserve.ipc.channel import Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.status import Heartbeat

INTERVAL_S = 1.0


class HeartbeatSender:
    """Call ``beat`` in every iteration of the main loop, and at least every INTERVAL_S while idle.

    Heartbeats are dropped while the health server does not receive them.
    """

    def __init__(self, endpoints: Endpoints, process: str) -> None:
        self._process = process
        self._sender: Sender[Heartbeat] = Sender(endpoints.health, Heartbeat, limit=16)
        self._progress = 0
        self._sent_s = 0.0

    def beat(self, *, busy: bool, progressed: bool = True) -> None:
        """``busy``: there is work. ``progressed``: some work was finished since the last call."""
        self._progress += progressed
        now = time.monotonic()
        if now - self._sent_s >= INTERVAL_S:
            self._sent_s = now
            self._sender.send(Heartbeat(process=self._process, progress=self._progress, busy=busy))

    def close(self) -> None:
        self._sender.close()
