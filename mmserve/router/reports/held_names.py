"""Names of what a cache of known size holds, oldest first out. Pure.

The caches themselves know no names of fronts: the arena evicts by a policy of its own, the prefix cache by blocks. So a
name may stay here a little longer than what it names, or go earlier. A wrong one costs a request the work that it would
have had elsewhere, and is right again after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from mmserve.cluster.scale.reports import Holdings, Kind

_MAX_NAMES = 1 << 16
"""Whatever their sizes: a request may name many things and hold nothing of them."""


class HeldNames:
    """``capacity``: of the cache, in any unit; ``epoch``: of its reports."""

    def __init__(self, kind: Kind, capacity: float, epoch: int) -> None:
        self._kind = kind
        self._capacity = capacity
        self._epoch = epoch
        self._number = 0
        self._size = 0.0
        self._sizes: OrderedDict[int | str, float] = OrderedDict()
        """By name. What no front has named has a text in place of a name."""
        self._added: set[int] = set()
        """Since the last report, as ``_removed``."""
        self._removed: set[int] = set()

    def use(self, names: Iterable[int | str], size: float) -> None:
        """These are held now, each of this size. A text stands for something that takes room and is not reported."""
        for name in names:
            if name not in self._sizes:
                self._note(name, self._added, self._removed)
            self._size += size - self._sizes.pop(name, 0.0)
            self._sizes[name] = size
        while len(self._sizes) > _MAX_NAMES or (self._size > self._capacity and self._sizes):
            name, dropped = self._sizes.popitem(last=False)
            self._size -= dropped
            self._note(name, self._removed, self._added)

    def missing(self, names: Iterable[int]) -> int:
        """How many of these are not held."""
        return sum(name not in self._sizes for name in names)

    def changes(self, *, snapshot: bool) -> Holdings | None:
        """What has changed since the last call; None if nothing has. ``snapshot``: all that is held."""
        added, removed = tuple(self._added), tuple(self._removed)
        if not (added or removed or snapshot):
            return None
        self._added.clear()
        self._removed.clear()
        self._number += 1
        if snapshot:
            held = tuple(name for name in self._sizes if isinstance(name, int))
            return Holdings(self._kind, self._epoch, self._number, held, (), snapshot=True)
        return Holdings(self._kind, self._epoch, self._number, added, removed)

    @staticmethod
    def _note(name: int | str, here: set[int], there: set[int]) -> None:
        """``name`` came or went; if it had gone or come since the last report, nothing has changed."""
        if isinstance(name, str):
            return
        if name in there:
            there.remove(name)
        else:
            here.add(name)
