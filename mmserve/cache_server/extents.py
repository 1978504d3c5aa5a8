"""Free space of the arena: contiguous extents, best fit, neighbours joined when freed.

Pure bookkeeping over [0, nbytes). Knows no items and no payload.
"""

from __future__ import annotations

from collections.abc import Iterator

from sortedcontainers import SortedList


class Extents:
    """Sizes and offsets are bytes; callers round them to the arena's alignment."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.free_nbytes = 0
        self._by_size: SortedList = SortedList()
        """(size, start) of every hole."""
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}
        if nbytes:
            self._add(0, nbytes)

    def copy(self) -> Extents:
        """An independent free list with the same holes, to plan on."""
        twin = Extents(0)
        twin.nbytes, twin.free_nbytes = self.nbytes, self.free_nbytes
        twin._by_size = self._by_size.copy()
        twin._end_of, twin._start_of = dict(self._end_of), dict(self._start_of)
        return twin

    def alloc(self, size: int) -> int | None:
        """Offset at the start of the smallest hole that fits (the lowest of equals); None when none does."""
        index = self._by_size.bisect_left((size, 0))
        if index == len(self._by_size):
            return None
        start = int(self._by_size[index][1])
        self.take(start, size)
        return start

    def take(self, offset: int, size: int) -> None:
        """Occupy exactly [offset, offset + size), which must be free."""
        start, end = self.hole_around(offset)
        assert start <= offset < offset + size <= end, "taking what is not free"
        self._remove(start, end)
        if start < offset:
            self._add(start, offset)
        if offset + size < end:
            self._add(offset + size, end)

    def free(self, offset: int, size: int) -> None:
        """Give [offset, offset + size) back and join it with its neighbours."""
        assert 0 <= offset < offset + size <= self.nbytes, "freeing what is not there"
        start, end = offset, offset + size
        if (before := self._start_of.get(offset)) is not None:
            self._remove(before, offset)
            start = before
        if (after := self._end_of.get(end)) is not None:
            self._remove(end, after)
            end = after
        self._add(start, end)

    def hole_around(self, offset: int) -> tuple[int, int]:
        """(start, end) of the hole that contains ``offset``."""
        if offset in self._end_of:
            return offset, self._end_of[offset]
        for start, end in self._end_of.items():
            if start <= offset < end:
                return start, end
        raise AssertionError(f"no hole at {offset}")

    def holes(self) -> Iterator[tuple[int, int]]:
        """(start, end) of every hole, in no order."""
        yield from self._end_of.items()

    def _add(self, start: int, end: int) -> None:
        self._by_size.add((end - start, start))
        self._end_of[start] = end
        self._start_of[end] = start
        self.free_nbytes += end - start

    def _remove(self, start: int, end: int) -> None:
        self._by_size.remove((end - start, start))
        del self._end_of[start], self._start_of[end]
        self.free_nbytes -= end - start
