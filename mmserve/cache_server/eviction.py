"""Where new extents go and which cached items make way for them: the least valuable bytes, and no more than needed.

What has to be in one piece is looked for around the least valuable items: from each, as a seed, a window grows over
holes and over neighbours that may go, to the side where less is lost. So what it costs depends on how many neighbours
that takes, and not on how many items there are. Knows no states and no leases.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from mmserve.cache_server.extents import Extent, Extents
from mmserve.cache_server.occupants import Occupants

_SEEDS = 8
"""So many are looked at once there is a window; more find hardly better ones."""


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
    extents: Extents,
    occupants: Occupants[V],
    groups: Sequence[Sequence[int]],
    candidates: Iterable[V],
    loss: Callable[[V], float | None],
) -> Plan[V] | None:
    """Place ``groups`` of sizes in ``extents``, giving back there what victims have; None, with nothing changed, when
    there is no room. ``candidates`` are those that may go, the least valuable first; ``loss`` is what is lost with
    one, None for those that have to stay.

    What is in a group will be given back together, so each lies in one hole if there are such holes. Otherwise what
    fits into any holes goes there, the largest first, and the rest where others make way for it.
    """
    if (runs := _in_runs(extents, groups)) is not None:
        return Plan(runs, [])
    sizes, (first, again) = list(itertools.chain(*groups)), itertools.tee(candidates)
    # Something small may have gone into the only hole that could be made long enough for something large.
    return _Room(extents, occupants, first, loss).place(sizes, holes_first=True) or _Room(
        extents, occupants, again, loss
    ).place(sizes, holes_first=False)


def _in_runs(extents: Extents, groups: Sequence[Sequence[int]]) -> list[int] | None:
    runs: list[list[int]] = []
    for group in groups:
        run = extents.alloc_run(group)
        if run is None:
            for taken, sizes in zip(runs, groups, strict=False):
                extents.free(taken[0], sum(sizes))
            return None
        runs.append(run)
    return list(itertools.chain(*runs))


class _Room(Generic[V]):
    """One attempt; what it has changed in the free list can be undone."""

    def __init__(
        self, extents: Extents, occupants: Occupants[V], candidates: Iterable[V], loss: Callable[[V], float | None]
    ) -> None:
        self._extents, self._occupants, self._loss = extents, occupants, loss
        self._candidates = iter(candidates)
        self._spared: list[V] = []
        """Candidates looked at so far that have not gone."""
        self._victims: dict[int, V] = {}
        """By identity."""
        self._reach: dict[int, int] = {}
        """Start of a tile -> bytes from one neighbour that has to stay to the next: a window there is never longer."""
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
        offset = self._extents.alloc(size)
        if offset is not None:
            self._done.append((True, (offset, size)))
        return offset

    def _in_window(self, size: int) -> int | None:
        """Where others make way: the window of the least loss among those around the first seeds that have any."""
        best: tuple[float, list[_Tile[V]]] | None = None
        looked_at = 0
        for tile in self._seeds():
            if best is None:
                best = self._grow(tile, size, float("inf"))
            elif not best[1][0].start <= tile.start < best[1][-1].end:
                best = self._grow(tile, size, best[0]) or best
            looked_at += best is not None
            if looked_at == _SEEDS:
                break
        if best is None:
            return None
        self._evict(best[1])
        offset = best[1][0].start
        self._extents.take(offset, size)
        self._done.append((True, (offset, size)))
        return offset

    def _seeds(self) -> Iterator[_Tile[V]]:
        self._spared = [who for who in self._spared if id(who) not in self._victims]
        for who in itertools.chain(tuple(self._spared), self._draw()):
            for offset, size in who.extents:
                if (tile := self._tile(offset, offset + size, who)) is not None:
                    yield tile

    def _draw(self) -> Iterator[V]:
        for who in self._candidates:
            self._spared.append(who)
            yield who

    def _tile(self, start: int, end: int, who: V) -> _Tile[V] | None:
        """None when it has to stay; what has gone already may have left its place to something new."""
        if id(who) in self._victims or (loss := self._loss(who)) is None:
            return None
        return _Tile(start, end, who, loss)

    def _grow(self, seed: _Tile[V], size: int, limit: float) -> tuple[float, list[_Tile[V]]] | None:
        """(loss, tiles side by side) of at least ``size`` bytes around the seed; None when others are in the way, or
        when not less than ``limit`` would be lost."""
        if self._reach.get(seed.start, size) < size:
            return None
        tiles, loss = deque([seed]), seed.loss
        left, right = self._before(seed.start), self._after(seed.end)
        while tiles[-1].end - tiles[0].start < size:
            if left is None and right is None:
                self._reach.update(dict.fromkeys((tile.start for tile in tiles), tiles[-1].end - tiles[0].start))
                return None
            if loss >= limit:
                return None
            if right is None or (left is not None and left.density < right.density):
                assert left is not None, "one side is open"
                tiles.appendleft(left)
                loss += left.loss
                left = self._before(left.start)
            else:
                tiles.append(right)
                loss += right.loss
                right = self._after(right.end)
        while tiles[-1].end - tiles[0].end >= size:
            loss -= tiles.popleft().loss
        while tiles[-1].start - tiles[0].start >= size:
            loss -= tiles.pop().loss
        return (loss, list(tiles)) if loss < limit else None

    def _before(self, end: int) -> _Tile[V] | None:
        """The neighbour on the left; None when it has to stay."""
        if (start := self._extents.hole_to(end)) is not None:
            return _Tile(start, end, None, 0.0)
        found = self._occupants.to(end)
        return None if found is None else self._tile(found[0], end, found[1])

    def _after(self, start: int) -> _Tile[V] | None:
        """The neighbour on the right; None when it has to stay."""
        if (end := self._extents.hole_from(start)) is not None:
            return _Tile(start, end, None, 0.0)
        found = self._occupants.from_(start)
        return None if found is None else self._tile(start, found[0], found[1])

    def _evict(self, tiles: Iterable[_Tile[V]]) -> None:
        going = {id(who): who for who in (tile.who for tile in tiles) if who is not None}
        freed = [extent for who in going.values() for extent in who.extents]
        self._victims |= going
        self._extents.free_all(freed)
        self._done += [(False, extent) for extent in freed]

    def _undo(self) -> None:
        for taken, extent in reversed(self._done):
            (self._extents.free if taken else self._extents.take)(*extent)
