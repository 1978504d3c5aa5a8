"""The arena as the table sees it: its holes, who lies where, and what new extents may have.

That is kept up to date rather than looked for: however many items are cached, whether there is room among those in use
is known at once. Knows no values and no leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Generic

from mmserve.cache_server.allocator.extents import Extent, Extents
from mmserve.cache_server.allocator.used_extents import UsedExtents, Who


class ArenaMap(Generic[Who]):
    """Sizes and offsets are bytes. Whoever is put into it stays until ``let_go``."""

    def __init__(self, nbytes: int) -> None:
        self.holes = Extents(nbytes)
        self.available = Extents(nbytes)
        """The holes, joined with what lies between them and may be evicted: one "hole" is what lies between two that
        have to stay."""
        self.occupants: UsedExtents[Who] = UsedExtents()
        self.num_freed = 0
        """Grows whenever more is available than before: what found no room need not be tried again until then."""

    def take(self, offset: int, size: int) -> None:
        """For something new, in a hole."""
        self.holes.take(offset, size)
        self.available.take(offset, size)

    def free(self, offset: int, size: int) -> None:
        """Undo ``take``."""
        self.holes.free(offset, size)
        self.available.free(offset, size)

    def hold(self, occupants: Iterable[Who]) -> None:
        """They have to stay, and did not until now."""
        self.available.take_all(_extents_of(occupants))

    def let_go(self, occupants: Iterable[Who]) -> None:
        """They had to stay, and may be evicted from now on."""
        self.available.free_all(_extents_of(occupants))
        self.num_freed += 1

    def give_back(self, extents: Sequence[Extent]) -> None:
        """Of those who had to stay: nobody lies there any more."""
        self.occupants.remove(extents)
        self.holes.free_all(extents)
        self.available.free_all(extents)
        self.num_freed += 1


def _extents_of(occupants: Iterable[Who]) -> list[Extent]:
    return [extent for who in occupants for extent in who.extents]
