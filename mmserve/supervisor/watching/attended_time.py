"""Time in which the supervisor itself did not run does not count against a process.

If the machine or the whole server was suspended, no process could beat or start.
"""

from __future__ import annotations

import math
from collections import deque


class AttendedTime:
    """Seconds between two times in which this process was running. Pure."""

    def __init__(self, interval_s: float) -> None:
        """``interval_s``: ``look`` is called at least this often while this process runs."""
        self._interval_s = interval_s
        self._first_look_s = self._looked_s = math.nan
        self._pauses: deque[tuple[float, float]] = deque(maxlen=256)
        """(end, duration) of each time in which it did not run."""

    def look(self, now_s: float) -> None:
        if math.isnan(self._looked_s):
            self._first_look_s = now_s
        elif (missed_s := now_s - self._looked_s - 2 * self._interval_s) > 0:
            self._pauses.append((now_s, missed_s))
        self._looked_s = now_s

    def elapsed_s(self, since_s: float, now_s: float) -> float:
        """A pause that had begun before ``since_s`` counts only from then on.

        Time before the first look does not count: a pause in it was not seen.
        """
        since_s = max(since_s, self._first_look_s)
        missed_s = sum(min(missed_s, end_s - since_s) for end_s, missed_s in self._pauses if end_s > since_s)
        return now_s - since_s - missed_s
