"""Caches to compare the eviction policy with: LRU and FIFO over the same bytes, without fragmentation."""

from __future__ import annotations

from collections import OrderedDict

from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem


class Rival:
    """Holds embeddings of ``nbytes`` in all; the first in its order goes first."""

    def __init__(self, nbytes: int, *, moves_on_hit: bool) -> None:
        self._free = nbytes
        self._moves_on_hit = moves_on_hit
        self._held: OrderedDict[AllocItem, int] = OrderedDict()

    def ask(self, item: AllocItem) -> bool:
        """Is it there? It is afterwards."""
        if item in self._held:
            if self._moves_on_hit:
                self._held.move_to_end(item)
            return True
        size = extent_nbytes(item.embed_nbytes)
        while self._free < size:
            self._free += self._held.popitem(last=False)[1]
        self._held[item] = size
        self._free -= size
        return False


def lru(nbytes: int) -> Rival:
    """Evicts what has not been asked for the longest."""
    return Rival(nbytes, moves_on_hit=True)


def fifo(nbytes: int) -> Rival:
    """Evicts what has been there the longest."""
    return Rival(nbytes, moves_on_hit=False)
