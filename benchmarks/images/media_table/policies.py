"""Caches to compare the eviction policy with: LRU and FIFO over the same bytes, without fragmentation."""

from __future__ import annotations

from collections import OrderedDict

from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem


class ReferenceCache:
    """A cache of ``nbytes`` of embeddings in a queue; evicts from its head."""

    def __init__(self, nbytes: int, *, moves_on_hit: bool) -> None:
        self._free = nbytes
        self._moves_on_hit = moves_on_hit
        self._cached: OrderedDict[AllocItem, int] = OrderedDict()

    def request(self, item: AllocItem) -> bool:
        """True if the item is a hit. It is cached afterwards."""
        if item in self._cached:
            if self._moves_on_hit:
                self._cached.move_to_end(item)
            return True
        size = extent_nbytes(item.embed_nbytes)
        while self._free < size:
            self._free += self._cached.popitem(last=False)[1]
        self._cached[item] = size
        self._free -= size
        return False


def lru(nbytes: int) -> ReferenceCache:
    """Evicts the least recently requested item."""
    return ReferenceCache(nbytes, moves_on_hit=True)


def fifo(nbytes: int) -> ReferenceCache:
    """Evicts the item that was inserted first."""
    return ReferenceCache(nbytes, moves_on_hit=False)
