"""Where new extents go and which cached items make way for them: the least valuable bytes, and no more than needed.

What has to be in one piece is looked for around the least valuable items: from each, as a seed, a window grows over
holes and over neighbours that may go, to the side where less is lost. Whether there is room around a seed, or anywhere,
ArenaMap knows. So what it costs, to find a place or that there is none, depends on how many neighbours a place takes,
and not on how many items there are. Knows no states and no leases.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from mmserve.cache_server.allocator.arena_map import ArenaMap
from mmserve.cache_server.allocator.extents import Extent

_WINDOWS = 8
"""Of so many the best is taken; more hold hardly better ones."""

_SEEDS = 256
"""So many are looked at in vain, those that have no room around them, before any room will do."""


class Victim(Protocol):
    """What may be evicted; all its extents go together."""

    @property
    def extents(self) -> Sequence[Extent]: ...


V = TypeVar("V", bound=Victim)


class Plan(NamedTuple, Generic[V]):
    """Where the new extents go, in the order asked for, and who goes for them."""

    offsets: list[int]
    victims: list[V]


class _Tile(NamedTuple, Generic[V]):
    """A hole (``who``: None), or an extent of somebody who may go, and what is lost then."""

    start: int
    end: int
    who: V | None
    loss: float

    @property
    def density(self) -> float:
        return self.loss / (self.end - self.start)


def plan(
    space: ArenaMap[V], groups: Sequence[Sequence[int]], candidates: Iterable[V], loss: Callable[[V], float]
) -> Plan[V] | None:
    """Take places in ``space`` for ``groups`` of sizes, making holes of what victims have; None, with nothing changed,
    when there is no room. ``candidates`` are those that may go, the least valuable first, any that may not among them
    being passed over; ``loss`` is what is lost with one.

    What is in a group will be given back together, so each lies in one hole if there are such holes. Otherwise what
    fits into any holes goes there, the largest first, and the rest where others make way for it.
    """
    if (runs := _in_runs(space, groups)) is not None:
        return Plan(runs, [])
    sizes, (first, again) = list(itertools.chain(*groups)), itertools.tee(candidates)
    # Something small may have gone into the only hole that could be made long enough for something large.
    return _Room(space, first, loss).place(sizes, holes_first=True) or _Room(space, again, loss).place(
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
        space.available.take(run[0], sum(group))
        runs.append(run)
    return list(itertools.chain(*runs))


class _Room(Generic[V]):
    """One attempt; what it has changed in the space can be undone."""

    def __init__(self, space: ArenaMap[V], candidates: Iterable[V], loss: Callable[[V], float]) -> None:
        self._space, self._loss = space, loss
        self._candidates = iter(candidates)
        self._spared: list[V] = []
        """Candidates looked at so far that have not gone."""
        self._victims: dict[int, V] = {}
        """By identity."""
        self._done: list[tuple[bool, Extent]] = []
        """(taken, otherwise given back; extent), to be undone."""

    def place(self, sizes: Sequence[int], *, holes_first: bool) -> Plan[V] | None:
        """All of them or, with everything undone, None."""
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
        """Where others make way: the window of the least loss among those around the first seeds that have any."""
        if (somewhere := self._space.available.smallest_hole(size)) is None:
            return None
        best: tuple[float, list[_Tile[V]]] | None = None
        num_windows = 0
        for tile in itertools.islice(self._seeds(), _SEEDS):
            room = self._space.available.hole_around(tile.start)
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
        assert best is not None, "there is room, and no limit to what may be lost"
        self._evict(best[1])
        return self._take(best[1][0].start, size)

    def _take(self, offset: int, size: int) -> int:
        self._space.take(offset, size)
        self._done.append((True, (offset, size)))
        return offset

    def _seeds(self) -> Iterator[_Tile[V]]:
        self._spared = [who for who in self._spared if id(who) not in self._victims]
        for who in itertools.chain(tuple(self._spared), self._draw()):
            if id(who) not in self._victims:
                yield from (_Tile(offset, offset + size, who, self._loss(who)) for offset, size in who.extents)

    def _draw(self) -> Iterator[V]:
        for who in self._candidates:
            self._spared.append(who)
            yield who

    def _grow(self, seed: _Tile[V], room: Extent, size: int, limit: float) -> tuple[float, list[_Tile[V]]] | None:
        """(loss, tiles side by side) of at least ``size`` bytes around the seed, within ``room``, which is (start, end)
        of no less; None when not less than ``limit`` would be lost."""
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
        """The neighbour on the left, where there is room."""
        if (start := self._space.holes.hole_to(end)) is not None:
            return _Tile(start, end, None, 0.0)
        found = self._space.occupants.to(end)
        assert found is not None, "what is no hole is somebody's"
        return _Tile(found[0], end, found[1], self._loss(found[1]))

    def _after(self, start: int) -> _Tile[V]:
        """The neighbour on the right, where there is room."""
        if (end := self._space.holes.hole_from(start)) is not None:
            return _Tile(start, end, None, 0.0)
        found = self._space.occupants.from_(start)
        assert found is not None, "what is no hole is somebody's"
        return _Tile(start, found[0], found[1], self._loss(found[1]))

    def _evict(self, tiles: Iterable[_Tile[V]]) -> None:
        going = {id(who): who for who in (tile.who for tile in tiles) if who is not None}
        freed = [extent for who in going.values() for extent in who.extents]
        self._victims |= going
        self._space.holes.free_all(freed)
        self._done += [(False, extent) for extent in freed]

    def _undo(self) -> None:
        for taken, extent in reversed(self._done):
            (self._space.free if taken else self._space.holes.take)(*extent)
