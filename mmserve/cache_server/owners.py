"""The processes that hold leases and permits: their connections, and when each was heard last. Pure: no clock, no lock.

Silence is measured in time during which the cache server itself ran: heartbeats that arrived while it was stopped are
still unread when it goes on, so that time counts for nobody's silence.
"""

from __future__ import annotations

from collections import Counter

SILENT_S = 30.0
"""A process that sends no heartbeat for so long is taken to be stopped. It sends one every ``BEAT_INTERVAL_S``
(rpc/connection_pool.py), from a thread that does nothing else, so a busy process is never that late."""
_MAX_STEP_S = 2.0
"""A longer time between two looks means that the cache server was stopped, or had no processor."""


class Owners:
    """An owner is known while it has a connection."""

    def __init__(self, silent_s: float = SILENT_S) -> None:
        self._silent_s = silent_s
        self._connections: Counter[str] = Counter()
        self._unregistered: set[str] = set()
        self._heard_s: dict[str, float] = {}
        """Owner -> ``_ran_s`` when it was heard last."""
        self._ran_s = 0.0
        self._now_s: float | None = None

    def __contains__(self, owner: str) -> bool:
        return owner in self._connections

    def connect(self, owner: str) -> None:
        self._connections[owner] += 1
        self.beat(owner)

    def disconnect(self, owner: str) -> bool:
        """Returns True with the owner's last connection."""
        self._connections[owner] -= 1
        if self._connections[owner] > 0:
            return False
        del self._connections[owner], self._heard_s[owner]
        return True

    def unregister(self, owner: str) -> None:
        """The owner has announced its clean end."""
        self._unregistered.add(owner)

    def pop_unregistered(self, owner: str) -> bool:
        """Whether the owner had announced its end. Forgets it."""
        was_unregistered = owner in self._unregistered
        self._unregistered.discard(owner)
        return was_unregistered

    def beat(self, owner: str) -> None:
        """The owner was heard."""
        if owner in self._connections:
            self._heard_s[owner] = self._ran_s

    def take_silent(self, now_s: float) -> list[str]:
        """Owners that have been silent for too long; each is named once in every such time."""
        if self._now_s is not None:
            self._ran_s += min(now_s - self._now_s, _MAX_STEP_S)
        self._now_s = now_s
        silent = [owner for owner, heard_s in self._heard_s.items() if self._ran_s - heard_s > self._silent_s]
        for owner in silent:
            self._heard_s[owner] = self._ran_s
        return silent
