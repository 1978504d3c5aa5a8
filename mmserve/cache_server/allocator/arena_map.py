"""The map of the arena: which bytes are free, who uses the others, and where new extents could go.

All of it is kept up to date on every change, so that a search for room does not depend on the number of cached images.
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
    """Every extent in use, with its owner, by both its ends: neighbours are found in constant time."""

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
        """(end, owner) of the extent that starts there."""
        return self._by_start.get(start)

    def ending_at(self, end: int) -> tuple[int, Owner] | None:
        """(start, owner) of the extent that ends there."""
        start = self._starts.get(end)
        return None if start is None else (start, self._by_start[start][1])


class ArenaMap(Generic[Owner]):
    """Sizes and offsets are bytes. A new owner is pinned, that is not evictable, until ``unpin``."""

    def __init__(self, nbytes: int) -> None:
        self.holes = FreeExtents(nbytes)
        self.evictable = FreeExtents(nbytes)
        """The holes together with the extents of owners that are not pinned: each of its "holes" is a stretch between
        two pinned extents, all of which could be made free."""
        self.used: UsedExtents[Owner] = UsedExtents()
        self.num_freed = 0
        """Grows whenever more is evictable than before. A search that found no room need not be repeated until then."""

    def take(self, offset: int, size: int) -> None:
        """Use part of a hole for something new."""
        self.holes.take(offset, size)
        self.evictable.take(offset, size)

    def free(self, offset: int, size: int) -> None:
        """Undo ``take``."""
        self.holes.free(offset, size)
        self.evictable.free(offset, size)

    def pin(self, owners: Iterable[Owner]) -> None:
        """They cannot be evicted any more."""
        self.evictable.take_all(_extents_of(owners))

    def unpin(self, owners: Iterable[Owner]) -> None:
        """They may be evicted from now on."""
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
