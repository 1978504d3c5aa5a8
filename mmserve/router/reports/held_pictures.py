"""Which pictures, by fronts' names, have their embeddings in the arena: as the cache server tells it. Pure."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from mmserve.cluster.scale.announced import Announced
from mmserve.cluster.scale.holdings import HoldingsTable
from mmserve.cluster.scale.reports import Holdings

_MAX_KEYS = 1 << 16
"""Pictures whose names are known; the one that was asked for longest ago is forgotten. Bounds reports too."""
_MAX_NAMES = 4
"""Of a picture, which may come as a file and by several URLs."""
_ARENA = "arena"


class HeldPictures:
    """Joins what the cache server has, which it names by ``short_key``, with the names that come with requests."""

    def __init__(self, epoch: int) -> None:
        self.announced = Announced("pictures", epoch)
        self._arena = HoldingsTable()
        self._names: OrderedDict[int, tuple[int, ...]] = OrderedDict()
        """By key."""
        self._held: Counter[int] = Counter()
        """Name -> keys of that name in the arena: a picture has another key where it is processed otherwise."""
        self._counted: dict[int, tuple[int, ...]] = {}
        """Key in the arena -> its names in ``_held``."""

    def named(self, pairs: Iterable[tuple[int, int]]) -> None:
        """A request has pictures with these names and keys."""
        for name, key in pairs:
            names = [each for each in self._names.pop(key, ()) if each != name]
            self._names[key] = (*names, name)[-_MAX_NAMES:]
            self._settle(key)
        while len(self._names) > _MAX_KEYS:
            self._settle(self._names.popitem(last=False)[0])

    def stored(self, report: Holdings) -> bool:
        """The cache server has told this. False: it must be asked for a snapshot."""
        touched = {*report.added, *report.removed}
        known = self._arena.apply(_ARENA, report)
        if report.snapshot or not self._arena.names(_ARENA):
            touched |= self._counted.keys()
        for key in touched:
            self._settle(key)
        return known

    def _settle(self, key: int) -> None:
        """Count the key's names as they are now."""
        names = self._names.get(key, ()) if key in self._arena.names(_ARENA) else ()
        counted = self._counted.pop(key, ())
        if names:
            self._counted[key] = names
        self._held.update(names)
        self._held.subtract(counted)
        for name in {*names, *counted}:
            if self._held[name]:
                self.announced.add(name)
            else:
                del self._held[name]
                self.announced.discard(name)
