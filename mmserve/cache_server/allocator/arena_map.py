"""The map of the arena: free extents, used extents with their owners, and stretches that evictions could free.

All of them are updated on every change, so the cost of a search for space does not depend on the number of images.
Pure.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from mmserve.cache_server.allocator.extents import Extent, FreeExtents


class HasExtents(Protocol):
    """Uses extents of the arena."""

    @property
    def extents(self) -> Sequence[Extent]: ...


Owner = TypeVar("Owner", bound=HasExtents)


class UsedExtents(Generic[Owner]):
    """Every extent in use, with its owner, indexed by start and by end, so that neighbours are found in O(1)."""

    def __init__(self) -> None:
        self._by_start: dict[int, tuple[int, Owner]] = {}
        """Start -> (end, owner)."""
        self._starts: dict[int, int] = {}
        """End -> start."""

    def add(self, offsets: Sequence[int], sizes: Iterable[int], owners: Iterable[Owner]) -> None:
        ends = list(map(operator.add, offsets, sizes))
        self._by_start.update(zip(offsets, zip(ends, owners, strict=True), strict=True))
        self._starts.update(zip(ends, offsets, strict=True))

    def remove(self, extents: Iterable[Extent]) -> None:
        for offset, size in extents:
            del self._by_start[offset], self._starts[offset + size]

    def starting_at(self, start: int) -> tuple[int, Owner] | None:
        """(end, owner) of the extent that starts at the offset."""
        return self._by_start.get(start)

    def ending_at(self, end: int) -> tuple[int, Owner] | None:
        """(start, owner) of the extent that ends at the offset."""
        start = self._starts.get(end)
        return None if start is None else (start, self._by_start[start][1])


class ArenaMap(Generic[Owner]):
    """Sizes and offsets are bytes. A new owner is pinned (not evictable) until ``unpin``."""

    def __init__(self, nbytes: int) -> None:
        self.holes = FreeExtents(nbytes)
        self.evictable = FreeExtents(nbytes)
        """The holes together with the extents of owners that are not pinned: each of its "holes" is a stretch between
        two pinned extents, all of which could be made free."""
        self.used: UsedExtents[Owner] = UsedExtents()
        self.num_freed = 0
        """Increases whenever more bytes become evictable. A search that found no space can only succeed after that."""

    def take(self, offset: int, size: int) -> None:
        """Mark part of a hole as used."""
        self.holes.take(offset, size)
        self.evictable.take(offset, size)

    def free(self, offset: int, size: int) -> None:
        """Undo ``take``."""
        self.holes.free(offset, size)
        self.evictable.free(offset, size)

    def pin(self, owners: Iterable[Owner]) -> None:
        """Make the owners not evictable."""
        self.evictable.take_all(_extents_of(owners))

    def unpin(self, owners: Iterable[Owner]) -> None:
        """Make the owners evictable."""
        self.evictable.free_all(_extents_of(owners))
        self.num_freed += 1

    def free_pinned(self, extents: Sequence[Extent]) -> None:
        """Free extents of pinned owners."""
        self.used.remove(extents)
        self.holes.free_all(extents)
        self.evictable.free_all(extents)
        self.num_freed += 1


def _extents_of(owners: Iterable[Owner]) -> list[Extent]:
    return [extent for owner in owners for extent in owner.extents]
