"""A budget of bytes: its limit, what is taken of it now, and the most that ever was. Pure: whoever uses it waits."""

from __future__ import annotations

MIB = 1 << 20


class ByteBudget:
    """Not thread-safe; one owner counts everything that is taken of it."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self.used_nbytes = 0
        self.peak_nbytes = 0

    def fits(self, nbytes: int) -> bool:
        """Is so much left?"""
        return self.used_nbytes + nbytes <= self.limit_nbytes

    def take(self, nbytes: int) -> None:
        """Count them, whether they fit or not."""
        self.used_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.used_nbytes)

    def give(self, nbytes: int) -> None:
        """Back what was taken."""
        assert 0 <= nbytes <= self.used_nbytes, "only what was taken is given back"
        self.used_nbytes -= nbytes
