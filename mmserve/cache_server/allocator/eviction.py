"""Where new extents go and which entries are evicted for them: the least valuable bytes, and few more than needed.

Each of the least valuable entries is a seed, from which a window grows over holes and evictable neighbours, to the side
where less is lost, until the new extent fits. ArenaMap tells at once whether there is room around a seed, or anywhere.
So the cost of a search depends on the number of neighbours in a window, and not on the number of entries. Pure.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from mmserve.cache_server.allocator.arena_map import ArenaMap, HasExtents
from mmserve.cache_server.allocator.extents import Extent

_WINDOWS = 8
"""Number of windows compared. More windows hardly reduce the loss."""
_SEEDS = 256
"""Seeds tried at most, also those with too little room around them. If none of them has room, the window starts at the
smallest stretch of the arena that has room, whatever is lost."""

V = TypeVar("V", bound=HasExtents)
"""An entry; all its extents are evicted together."""


class Plan(NamedTuple, Generic[V]):
    """Offsets of the new extents, in the order of their sizes, and the entries evicted for them."""

    offsets: list[int]
    victims: list[V]


class _Tile(NamedTuple, Generic[V]):
    """A hole (``entry``: None), or an extent of an evictable entry and the loss of evicting that."""

    start: int
    end: int
    entry: V | None
    loss: float

    @property
    def density(self) -> float:
        return self.loss / (self.end - self.start)


def plan(
    space: ArenaMap[V], groups: Sequence[Sequence[int]], candidates: Iterable[V], loss: Callable[[V], float]
) -> Plan[V] | None:
    """Take extents in ``space`` for ``groups`` of sizes and free those of the victims; None, with nothing changed, when
    there is no room. ``candidates``: evictable entries, the least valuable first; pinned ones among them are skipped.
    ``loss``: of evicting an entry.

    A group is the extents of one allocation that are likely to be freed at the same time: all its embeddings, or all
    its compressed bytes. If there are holes for whole groups, the extents of each group are put side by side into one
    hole, which is one hole again when they are freed. Otherwise the extents are placed one by one: those that fit go
    into any holes, the largest first, and entries are evicted for the rest.
    """
    if (runs := _in_runs(space, groups)) is not None:
        return Plan(runs, [])
    sizes, (first, again) = list(itertools.chain(*groups)), itertools.tee(candidates)
    # First fill holes with the extents that fit: that evicts least. It fails if such an extent takes the hole around
    # which the window of a larger extent has to grow. Then start over and place all extents, the largest first.
    return _Attempt(space, first, loss).place(sizes, holes_first=True) or _Attempt(space, again, loss).place(
        sizes, holes_first=False
    )


def _in_runs(space: ArenaMap[V], groups: Sequence[Sequence[int]]) -> list[int] | None:
    runs: list[list[int]] = []
    for group in groups:
        run = space.holes.alloc_run(group)
        if run is None:
            for taken, sizes in zip(runs, groups, strict=False):
                space.free(taken[0], sum(sizes))
            return None
        space.evictable.take(run[0], sum(group))
        runs.append(run)
    return list(itertools.chain(*runs))


class _Attempt(Generic[V]):
    """One attempt; its changes of the space can be undone."""

    def __init__(self, space: ArenaMap[V], candidates: Iterable[V], loss: Callable[[V], float]) -> None:
        self._space, self._loss = space, loss
        self._candidates = iter(candidates)
        self._drawn: list[V] = []
        """Candidates drawn so far that are not evicted."""
        self._victims: dict[int, V] = {}
        """``id(victim)`` -> victim."""
        self._changes: list[tuple[bool, Extent]] = []
        """What ``_undo`` reverts, in order: (True, extent taken) or (False, extent freed)."""

    def place(self, sizes: Sequence[int], *, holes_first: bool) -> Plan[V] | None:
        """Place all sizes. If that is impossible, undo everything and return None."""
        offsets: dict[int, int] = {}
        order = sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True)
        for index in order if holes_first else ():
            if (offset := self._in_hole(sizes[index])) is not None:
                offsets[index] = offset
        left = [index for index in order if index not in offsets]
        if len(left) > 1 and (start := self._anywhere(sum(sizes[index] for index in left))) is not None:
            offsets.update(
                zip(left, itertools.accumulate((sizes[index] for index in left), initial=start), strict=False)
            )
            left = []
        for index in left:
            if (offset := self._anywhere(sizes[index])) is None:
                self._undo()
                return None
            offsets[index] = offset
        return Plan([offsets[index] for index in range(len(sizes))], list(self._victims.values()))

    def _anywhere(self, size: int) -> int | None:
        offset = self._in_hole(size)
        return self._in_window(size) if offset is None else offset

    def _in_hole(self, size: int) -> int | None:
        hole = self._space.holes.smallest_hole(size)
        return None if hole is None else self._take(hole[0], size)

    def _in_window(self, size: int) -> int | None:
        """Evict the window of the least loss, of those around the first seeds that have room."""
        if (somewhere := self._space.evictable.smallest_hole(size)) is None:
            return None
        best: tuple[float, list[_Tile[V]]] | None = None
        num_windows = 0
        for tile in itertools.islice(self._seeds(), _SEEDS):
            room = self._space.evictable.hole_around(tile.start)
            if room is None or room[1] - room[0] < size:
                continue
            if best is None:
                best = self._grow(tile, room, size, float("inf"))
            elif not best[1][0].start <= tile.start < best[1][-1].end:
                best = self._grow(tile, room, size, best[0]) or best
            num_windows += 1
            if num_windows == _WINDOWS:
                break
        if best is None:
            best = self._grow(self._after(somewhere[0]), somewhere, size, float("inf"))
        assert best is not None, "there is room, and the loss has no limit"
        self._evict(best[1])
        return self._take(best[1][0].start, size)

    def _take(self, offset: int, size: int) -> int:
        self._space.take(offset, size)
        self._changes.append((True, (offset, size)))
        return offset

    def _seeds(self) -> Iterator[_Tile[V]]:
        self._drawn = [entry for entry in self._drawn if id(entry) not in self._victims]
        for entry in itertools.chain(tuple(self._drawn), self._draw()):
            if id(entry) not in self._victims:
                yield from (_Tile(offset, offset + size, entry, self._loss(entry)) for offset, size in entry.extents)

    def _draw(self) -> Iterator[V]:
        for entry in self._candidates:
            self._drawn.append(entry)
            yield entry

    def _grow(self, seed: _Tile[V], room: Extent, size: int, limit: float) -> tuple[float, list[_Tile[V]]] | None:
        """(loss, adjacent tiles) of at least ``size`` bytes around the seed; None when the loss would reach ``limit``.

        ``room``: (start, end) of at least ``size`` bytes, which the tiles do not leave.
        """
        tiles, loss = deque([seed]), seed.loss
        left = right = None
        while tiles[-1].end - tiles[0].start < size:
            if loss >= limit:
                return None
            if left is None and tiles[0].start > room[0]:
                left = self._before(tiles[0].start)
            if right is None and tiles[-1].end < room[1]:
                right = self._after(tiles[-1].end)
            if right is None or (left is not None and left.density < right.density):
                assert left is not None, "the room is as large as the window"
                tiles.appendleft(left)
                loss, left = loss + left.loss, None
            else:
                tiles.append(right)
                loss, right = loss + right.loss, None
        while tiles[-1].end - tiles[0].end >= size:
            loss -= tiles.popleft().loss
        while tiles[-1].start - tiles[0].start >= size:
            loss -= tiles.pop().loss
        return (loss, list(tiles)) if loss < limit else None

    def _before(self, end: int) -> _Tile[V]:
        """The neighbour on the left, inside evictable room."""
        if (start := self._space.holes.hole_to(end)) is not None:
            return _Tile(start, end, None, 0.0)
        found = self._space.used.ending_at(end)
        assert found is not None, "what is no hole is in use"
        return _Tile(found[0], end, found[1], self._loss(found[1]))

    def _after(self, start: int) -> _Tile[V]:
        """The neighbour on the right, inside evictable room."""
        if (end := self._space.holes.hole_from(start)) is not None:
            return _Tile(start, end, None, 0.0)
        found = self._space.used.starting_at(start)
        assert found is not None, "what is no hole is in use"
        return _Tile(start, found[0], found[1], self._loss(found[1]))

    def _evict(self, tiles: Iterable[_Tile[V]]) -> None:
        evicted = {id(tile.entry): tile.entry for tile in tiles if tile.entry is not None}
        freed = [extent for entry in evicted.values() for extent in entry.extents]
        self._victims |= evicted
        self._space.holes.free_all(freed)
        self._changes += [(False, extent) for extent in freed]

    def _undo(self) -> None:
        for taken, extent in reversed(self._changes):
            (self._space.free if taken else self._space.holes.take)(*extent)
