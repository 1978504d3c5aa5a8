"""Items without leases, in the order in which they are evicted: GreedyDual-Size with frequency (Cherkasova, 1998).

An item is worth what it costs, per byte, to make it again, as often as it has been used, above what evictions have cost
so far. Knows no extents.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator

from mmserve.cache_server.entries import CacheEntry

_STALE_ENTRIES = 1024


class EvictionQueue:
    """Coming and going are cheap, as every use of a cached item is both."""

    def __init__(self) -> None:
        self.nbytes = 0
        """Arena bytes of the items here."""
        self._count = 0
        self._inflation = 0.0
        self._now = 0
        """Uses so far."""
        self._heap: list[tuple[float, int, CacheEntry]] = []
        """(priority, use, item). Items that have gone since are left in it and passed over when met."""

    def add(self, item: CacheEntry) -> None:
        """The item's last lease has gone."""
        assert not item.idle_since, "an item is idle once"
        self._now += 1
        item.num_uses += 1
        item.priority = self._inflation + item.num_uses * _cost(item) / item.nbytes
        item.idle_since = self._now
        self.nbytes += item.nbytes
        self._count += 1
        if len(self._heap) > 2 * self._count + _STALE_ENTRIES:
            self._heap = [entry for entry in self._heap if entry[2].idle_since == entry[1]]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (item.priority, item.idle_since, item))

    def discard(self, item: CacheEntry) -> None:
        """The item is leased or gone; harmless when it was not idle."""
        if item.idle_since:
            item.idle_since = 0
            self.nbytes -= item.nbytes
            self._count -= 1

    def loss(self, item: CacheEntry) -> float:
        """What is lost with the item: what it costs to make it again, times how soon that is likely to be needed, which
        goes with its uses and against the time since the last."""
        return _cost(item) * item.num_uses / (self._now - item.idle_since + 1)

    def evicted(self, item: CacheEntry) -> None:
        """The item goes for good: what stays or comes is worth more than it was."""
        self._inflation = max(self._inflation, item.priority)
        self.discard(item)

    def ascending(self) -> Generator[CacheEntry]:
        """The least valuable first, of equals the least recently used; all are still here after its ``close``."""
        met: list[tuple[float, int, CacheEntry]] = []
        try:
            while self._heap:
                entry = heapq.heappop(self._heap)
                if entry[2].idle_since == entry[1]:
                    met.append(entry)
                    yield entry[2]
        finally:
            for entry in met:
                heapq.heappush(self._heap, entry)


def _cost(item: CacheEntry) -> int:
    """Encoding takes time in proportion to the tokens; bytes that are not encoded yet are quickly there again."""
    return item.spec.num_tokens if item.stage == "ready" else 0
