"""Free space of the arena: contiguous extents, best fit, neighbours joined when freed. Pure."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence

Extent = tuple[int, int]
"""(offset, size) in bytes."""


class FreeExtents:
    """The holes in [0, nbytes). Sizes and offsets are bytes; callers round them to the arena's alignment."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.free_nbytes = 0
        # Plain sorted lists: there are few holes, and inserting among ten thousand takes a microsecond.
        self._starts: list[int] = []
        self._ends: list[int] = []
        """Starts and ends of the holes, both ascending."""
        self._by_size: list[tuple[int, int]] = []
        """(size, start) of every hole, ascending."""
        if nbytes:
            self._insert(0, 0, nbytes)

    def alloc(self, size: int) -> int | None:
        """Take the start of the smallest hole that fits, the lowest of equal ones. None when none fits."""
        if (hole := self.smallest_hole(size)) is None:
            return None
        self.take(hole[0], size)
        return hole[0]

    def alloc_run(self, sizes: Sequence[int]) -> list[int] | None:
        """Take extents side by side in one hole; their offsets, or None when no hole is large enough."""
        start = self.alloc(sum(sizes))
        return None if start is None else list(itertools.accumulate(sizes[:-1], initial=start))

    def smallest_hole(self, size: int) -> tuple[int, int] | None:
        """(start, end) of the smallest hole that fits, the lowest of equal ones; None when none fits."""
        index = bisect_left(self._by_size, (size,))
        if index == len(self._by_size):
            return None
        nbytes, start = self._by_size[index]
        return start, start + nbytes

    def hole_around(self, offset: int) -> tuple[int, int] | None:
        """(start, end) of the hole with the byte at ``offset``; None when that is in use."""
        index = bisect_right(self._starts, offset) - 1
        return (self._starts[index], self._ends[index]) if index >= 0 and offset < self._ends[index] else None

    def hole_from(self, start: int) -> int | None:
        """End of the hole that starts at the offset."""
        index = bisect_left(self._starts, start)
        return self._ends[index] if index < len(self._starts) and self._starts[index] == start else None

    def hole_to(self, end: int) -> int | None:
        """Start of the hole that ends at the offset."""
        index = bisect_left(self._ends, end)
        return self._starts[index] if index < len(self._ends) and self._ends[index] == end else None

    def take(self, offset: int, size: int) -> None:
        """Occupy exactly [offset, offset + size), which must be free."""
        index = bisect_right(self._starts, offset) - 1
        assert index >= 0, "taking what is not free"
        start, end = self._remove(index)
        assert start <= offset < offset + size <= end, "taking what is not free"
        if offset + size < end:
            self._insert(index, offset + size, end)
        if start < offset:
            self._insert(index, start, offset)

    def free(self, offset: int, size: int) -> None:
        """Free [offset, offset + size), which must be in use, and join it with its neighbours."""
        start, end = offset, offset + size
        assert 0 <= start < end <= self.nbytes, "freeing what is not there"
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] <= end:
            assert self._starts[index] == end, "freeing what is free"
            _, end = self._remove(index)
        if index and self._ends[index - 1] >= start:
            assert self._ends[index - 1] == start, "freeing what is free"
            index -= 1
            start, _ = self._remove(index)
        self._insert(index, start, end)

    def free_all(self, extents: Iterable[Extent]) -> None:
        """Free several extents; adjacent ones are freed as one."""
        for extent in _joined(extents):
            self.free(*extent)

    def take_all(self, extents: Iterable[Extent]) -> None:
        """Occupy exactly these extents, which must be free; adjacent ones are occupied as one."""
        for extent in _joined(extents):
            self.take(*extent)

    def holes(self) -> Iterator[tuple[int, int]]:
        """(start, end) of every hole, ascending."""
        return zip(self._starts, self._ends, strict=True)

    def _insert(self, index: int, start: int, end: int) -> None:
        self._starts.insert(index, start)
        self._ends.insert(index, end)
        insort(self._by_size, (end - start, start))
        self.free_nbytes += end - start

    def _remove(self, index: int) -> tuple[int, int]:
        start, end = self._starts.pop(index), self._ends.pop(index)
        del self._by_size[bisect_left(self._by_size, (end - start, start))]
        self.free_nbytes -= end - start
        return start, end


def _joined(extents: Iterable[Extent]) -> Iterator[Extent]:
    ordered = iter(sorted(extents))
    start, size = next(ordered, (0, 0))
    for offset, more in ordered:
        if start + size != offset:
            yield start, size
            start, size = offset, 0
        size += more
    if size:
        yield start, size
