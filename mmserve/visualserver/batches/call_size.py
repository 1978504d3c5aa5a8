"""How many pictures one call of a vision tower may have, after memory has run out. Pure."""

from __future__ import annotations

_CALLS_BEFORE_MORE = 64
"""A few large pictures, or another process, may have taken the memory. Trying again costs one call."""


class CallSize:
    """``now``: at most so many pictures. ``most``: at first, and never more."""

    def __init__(self, most: int) -> None:
        self.now = self._most = most
        self._num_fitted = 0
        """Calls as large as may be, since the limit has changed."""

    def ran_out(self, count: int) -> None:
        """Memory did not suffice for so many pictures, at least two."""
        self.now, self._num_fitted = count // 2, 0

    def fitted(self, count: int) -> None:
        """It did."""
        if count == self.now < self._most:
            self._num_fitted += 1
            if self._num_fitted == _CALLS_BEFORE_MORE:
                self.now, self._num_fitted = min(2 * self.now, self._most), 0
