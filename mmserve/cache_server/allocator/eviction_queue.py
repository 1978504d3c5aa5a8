"""Entries without leases, in the order in which they are evicted: GreedyDual-Size with frequency (Cherkasova, 1998).

The value of an entry is the cost per byte of making it again, times its uses, on top of the value of the last one
evicted. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from typing import Generic, Protocol, TypeVar

_MAX_STALE = 1024


class Evictable(Protocol):
    """An entry. The last three fields belong to the queue."""

    nbytes: int
    priority: float
    idle_since: int
    """Number of the use since which it is in the queue; 0: it is not."""
    num_uses: int

    @property
    def cost(self) -> int:
        """Cost of computing the entry again."""


E = TypeVar("E", bound=Evictable)


class EvictionQueue(Generic[E]):
    """Adding and removing are cheap, as every use of a cached entry is both."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Arena bytes of the entries."""
        self._count = 0
        self._inflation = 0.0
        """Priority of the last entry evicted. New entries start above it, so that old ones are evicted in the end."""
        self._num_uses = 0
        self._heap: list[tuple[float, int, E]] = []
        """(priority, use, entry). Entries removed since stay in it and are skipped."""

    def add(self, entry: E) -> None:
        """The entry has lost its last lease."""
        assert not entry.idle_since, "the entry is in the queue already"
        self._num_uses += 1
        entry.num_uses += 1
        entry.priority = self._inflation + entry.num_uses * entry.cost / entry.nbytes
        entry.idle_since = self._num_uses
        self.nbytes += entry.nbytes
        self._count += 1
        if len(self._heap) > 2 * self._count + _MAX_STALE:
            self._heap = [item for item in self._heap if item[2].idle_since == item[1]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (entry.priority, entry.idle_since, entry))

    def discard(self, entry: E) -> None:
        """The entry has a lease or is removed. Harmless if it is not in the queue."""
        if entry.idle_since:
            entry.idle_since = 0
            self.nbytes -= entry.nbytes
            self._count -= 1

    def loss(self, entry: E) -> float:
        """Expected cost of evicting the entry: the cost of making it again, times its uses, over the uses of others
        since its last one."""
        return entry.cost * entry.num_uses / (self._num_uses - entry.idle_since + 1)

    def evicted(self, entry: E) -> None:
        """Remove the evicted entry. Later entries get priorities above its own."""
        self._inflation = max(self._inflation, entry.priority)
        self.discard(entry)

    def ascending(self) -> Generator[E]:
        """Entries by ascending priority, then least recently used first. ``close`` restores them all."""
        seen: list[tuple[float, int, E]] = []
        try:
            while self._heap:
                item = heapq.heappop(self._heap)
                if item[2].idle_since == item[1]:
                    seen.append(item)
                    yield item[2]
        finally:
            for item in seen:
                heapq.heappush(self._heap, item)
