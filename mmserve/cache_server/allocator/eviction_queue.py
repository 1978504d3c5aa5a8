"""Entries without leases, in the order in which a policy evicts them. Pure.

A policy is two functions, because an eviction makes two choices:

``priority`` decides which entries are considered first. It is computed once, when an entry enters the queue, so that a
heap can keep the order. It must therefore not depend on the entry's age; entries age by the rise of ``floor``.

``loss`` decides which window of adjacent bytes is evicted, among those around the first entries (``eviction.plan``). It
is computed during the search, from the entry's present age, and the losses of a window's entries are added up. It
is the loss of the whole entry and not of one byte, because a window evicts whole entries.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from typing import Generic, NamedTuple, Protocol, TypeVar

_MAX_STALE = 1024
"""This many items of removed entries may stay in the heap, and one more for each entry in the queue."""


class Evictable(Protocol):
    """An entry. The last three fields belong to the queue."""

    nbytes: int
    priority: float
    idle_since: int
    """The queue's count of uses when the entry entered it; 0: the entry is not in the queue."""
    num_uses: int
    """How often the entry has entered the queue. Each time, one use of it had ended: the leases on it."""

    @property
    def cost(self) -> int:
        """Cost of computing the entry again."""


E = TypeVar("E", bound=Evictable)


class EvictionPolicy(NamedTuple):
    """See the module's docstring."""

    priority: Callable[[Evictable, float], float]
    """priority(entry, floor) of an entry that enters the queue; the smallest is evicted first. ``floor``: the highest
    priority evicted so far. A priority above it lets new entries outlive old ones that are not used again."""
    loss: Callable[[Evictable, int], float]
    """loss(entry, age) of evicting the entry. ``age``: uses of any entry that have ended since this entry's last use,
    plus one."""


def _gdsf_priority(entry: Evictable, floor: float) -> float:
    return floor + entry.num_uses * entry.cost / entry.nbytes


def _expected_cost(entry: Evictable, age: int) -> float:
    """The cost of making the entry again, times how often it was used, divided by how long ago that was: an entry that
    was used often and lately is likely to be used soon."""
    return entry.cost * entry.num_uses / age


GDSF = EvictionPolicy(_gdsf_priority, _expected_cost)
"""GreedyDual-Size with frequency (Cherkasova, 1998)."""


class EvictionQueue(Generic[E]):
    """Adding and removing are cheap: every use of a cached entry removes it at its start and adds it at its end."""

    def __init__(self, policy: EvictionPolicy = GDSF) -> None:
        self._priority, self._loss = policy
        self.nbytes = 0
        """Arena bytes of the entries."""
        self._count = 0
        self._floor = 0.0
        """Highest priority evicted so far."""
        self._num_uses = 0
        """Uses of all entries that have ended."""
        self._heap: list[tuple[float, int, E]] = []
        """(priority, use, entry). Entries removed since stay in it and are skipped."""

    def add(self, entry: E) -> None:
        """The entry has lost its last lease."""
        assert not entry.idle_since, "the entry is in the queue already"
        self._num_uses += 1
        entry.num_uses += 1
        entry.priority = self._priority(entry, self._floor)
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
        """The policy's loss of evicting the entry now."""
        return self._loss(entry, self._num_uses - entry.idle_since + 1)

    def evicted(self, entry: E) -> None:
        """Remove the evicted entry, and raise the floor to its priority."""
        self._floor = max(self._floor, entry.priority)
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
