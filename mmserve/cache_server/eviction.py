"""Where new extents go and which cached items make way for them: the least valuable first, and no more than needed.

Pure planning on a copy of the free list; nothing is evicted here. Knows no states and no leases.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from mmserve.cache_server.extents import Extent, Extents


class Victim(Protocol):
    """What may be evicted; all its extents go together."""

    @property
    def extents(self) -> Sequence[Extent]: ...

    @property
    def priority(self) -> float:
        """What is lost with it."""
        ...


V = TypeVar("V", bound=Victim)


class Plan(NamedTuple, Generic[V]):
    """Where the new extents go, who goes, and the free list after both."""

    offsets: list[int]
    victims: list[V]
    extents: Extents


def plan(extents: Extents, groups: Sequence[Sequence[int]], candidates: Iterable[V]) -> Plan[V] | None:
    """Place ``groups`` of sizes, evicting as little as possible; None when even all candidates do not make enough room.

    Offsets are those of all groups in one row. What is in a group will be given back together, so each lies in one
    hole if there are such holes. Otherwise what fits into any holes goes there, the largest first. For the rest,
    candidates are considered in their order (least valuable first) until there is room; of those, only the ones that
    new extents really cover are evicted.
    """
    free = extents.copy()
    runs = [run for group in groups if (run := free.alloc_run(group)) is not None]
    if len(runs) == len(groups):
        return Plan(list(itertools.chain(*runs)), [], free)
    sizes, (first, again) = list(itertools.chain(*groups)), itertools.tee(candidates)
    # Something small may have gone into the only hole that could be made long enough for something large.
    return _evicting(extents, sizes, first, holes_first=True) or _evicting(extents, sizes, again, holes_first=False)


def _evicting(extents: Extents, sizes: Sequence[int], candidates: Iterable[V], *, holes_first: bool) -> Plan[V] | None:
    room = _Room(extents.copy(), candidates)
    order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
    offsets = room.fill({index: sizes[index] for index in order}) if holes_first else {}
    left = [index for index in order if index not in offsets]
    found = room.make([sizes[index] for index in left])
    if found is None:
        return None
    offsets.update(zip(left, found, strict=True))
    return Plan([offsets[index] for index in range(len(sizes))], room.evicted, room.settle())


class _Room(Generic[V]):
    """A free list in which the candidates considered so far count as free, until it is known which of them go."""

    def __init__(self, free: Extents, candidates: Iterable[V]) -> None:
        self.evicted: list[V] = []
        self._free = free
        self._candidates = iter(candidates)
        self._considered: dict[int, V] = {}
        """First offset -> candidate that is spared so far."""
        self._pieces: list[tuple[int, int, int]] = []
        """(start, end, first offset of its candidate) of every extent of those, ascending."""

    def fill(self, sizes: Mapping[int, int]) -> dict[int, int]:
        """Offsets of those that fit into holes, each into the smallest."""
        return {index: offset for index, size in sizes.items() if (offset := self._free.alloc(size)) is not None}

    def make(self, sizes: Sequence[int]) -> list[int] | None:
        """Offsets, considering candidates until there is room for all; None when there are too few of them.

        One behind the other if there is such a hole, which leaves no splinters. Otherwise, in the given order, each in
        the smallest hole that fits, and behind it as many of the next as that hole takes.
        """
        if not self._consider(sum(sizes) - self._free.free_nbytes):
            return None
        ends, offsets = list(itertools.accumulate(sizes, initial=0)), list[int]()
        while (first := len(offsets)) < len(sizes):
            hole = self._free.smallest_hole(ends[-1] - ends[first]) or self._free.smallest_hole(sizes[first])
            if hole is not None:
                last = bisect_right(ends, ends[first] + hole[1] - hole[0]) - 1
                shift = self._take(hole, ends[last] - ends[first]) - ends[first]
                offsets += [end + shift for end in ends[first:last]]
            elif not self._consider(1):
                return None
        return offsets

    def settle(self) -> Extents:
        """The free list, in which those that are spared have their extents again."""
        for start, end, _ in self._pieces:
            self._free.take(start, end - start)
        return self._free

    def _consider(self, nbytes: int) -> bool:
        """Count candidates as free until they have ``nbytes``, in pieces of whatever length. False: too few."""
        extents: list[Extent] = []
        while nbytes > 0:
            if (victim := next(self._candidates, None)) is None:
                return False
            pieces = victim.extents
            name = pieces[0][0]
            self._considered[name] = victim
            for offset, size in pieces:
                insort(self._pieces, (offset, offset + size, name))
                nbytes -= size
            extents += pieces
        self._free.free_all(extents)
        return True

    def _take(self, hole: tuple[int, int], size: int) -> int:
        """Occupy ``size`` bytes of hole (start, end), evicting who is in the way; the offset."""
        first, last = (bisect_left(self._pieces, (edge,)) for edge in hole)
        offset = hole[0]
        if first < last:
            offset, covered = self._cheapest_window(hole, size, self._pieces[first:last])
            self._evict(first + covered.start, first + covered.stop)
        self._free.take(offset, size)
        return offset

    def _cheapest_window(
        self, hole: tuple[int, int], size: int, pieces: Sequence[tuple[int, int, int]]
    ) -> tuple[int, range]:
        """Of the windows that begin or end where a piece or the hole does, the one that covers the least value: its
        offset, and which of the pieces (those inside the hole) it covers."""
        starts, ends = [piece[0] for piece in pieces], [piece[1] for piece in pieces]
        values = list(itertools.accumulate((self._considered[piece[2]].priority for piece in pieces), initial=0.0))
        latest = hole[1] - size
        edges = {hole[0], latest, *ends, *(start - size for start in starts)}
        best: tuple[float, int, int, range] | None = None
        for offset in (edge for edge in edges if hole[0] <= edge <= latest):
            covered = range(bisect_right(ends, offset), bisect_left(starts, offset + size))
            loss = (values[covered.stop] - values[covered.start], len(covered), offset, covered)
            best = loss if best is None or loss[:3] < best[:3] else best
        assert best is not None, "a hole that fits has a window"
        return best[2], best[3]

    def _evict(self, first: int, last: int) -> None:
        """The candidates of the pieces numbered first to last - 1 go, with what else they have."""
        names = {name for _, _, name in self._pieces[first:last]}
        self._pieces = [piece for piece in self._pieces if piece[2] not in names]
        self.evicted += [self._considered.pop(name) for name in names]
