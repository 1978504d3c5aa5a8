"""Who lies where in the arena: every extent in use by both its ends, so that its neighbours are found at once.

Knows no free space (Extents does) and no values.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from mmserve.cache_server.allocator.extents import Extent


class UsedExtent(Protocol):
    """Whatever has extents."""

    @property
    def extents(self) -> Sequence[Extent]: ...


Who = TypeVar("Who", bound=UsedExtent)


class UsedExtents(Generic[Who]):
    """Changes cost the same however many there are."""

    def __init__(self) -> None:
        self._by_start: dict[int, tuple[int, Who]] = {}
        self._starts: dict[int, int] = {}
        """End -> start."""

    def add(self, offsets: Sequence[int], sizes: Iterable[int], who: Iterable[Who]) -> None:
        """New extents, and whose each is."""
        ends = list(map(operator.add, offsets, sizes))
        self._by_start.update(zip(offsets, zip(ends, who, strict=True), strict=True))
        self._starts.update(zip(ends, offsets, strict=True))

    def remove(self, extents: Iterable[Extent]) -> None:
        """Nobody lies there any more."""
        for offset, size in extents:
            del self._by_start[offset], self._starts[offset + size]

    def from_(self, start: int) -> tuple[int, Who] | None:
        """(end, who) of the extent that starts there."""
        return self._by_start.get(start)

    def to(self, end: int) -> tuple[int, Who] | None:
        """(start, who) of the extent that ends there."""
        start = self._starts.get(end)
        return None if start is None else (start, self._by_start[start][1])
