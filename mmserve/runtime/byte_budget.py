"""A budget of bytes: limit, bytes used now, and the peak. Pure: waiting for room is up to the caller."""

from __future__ import annotations

MIB = 1 << 20


class ByteBudget:
    """Counts bytes against a limit. Not thread-safe."""

    def __init__(self, limit_nbytes: int) -> None:
        self.limit_nbytes = limit_nbytes
        self.used_nbytes = 0
        self.peak_nbytes = 0

    def fits(self, nbytes: int) -> bool:
        """True if ``nbytes`` more stay within the limit."""
        return self.used_nbytes + nbytes <= self.limit_nbytes

    def take(self, nbytes: int) -> None:
        """Count ``nbytes`` as used, even beyond the limit."""
        self.used_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.used_nbytes)

    def give(self, nbytes: int) -> None:
        """Give back bytes that were taken."""
        assert 0 <= nbytes <= self.used_nbytes, "only what was taken is given back"
        self.used_nbytes -= nbytes
