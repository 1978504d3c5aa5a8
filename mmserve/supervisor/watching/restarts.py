"""Limits how often a group of processes is restarted. Pure: the caller passes the time."""

from __future__ import annotations

from collections import defaultdict, deque

LIMIT = 5
WINDOW_S = 60.0


class RestartLimit:
    """Counts each group's restarts within a time window, and its restarts in a row without getting ready."""

    def __init__(self, limit: int = LIMIT, window_s: float = WINDOW_S) -> None:
        self._limit = limit
        self._window_s = window_s
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)
        self._num_failed: defaultdict[str, int] = defaultdict(int)

    def allows(self, group: str, now_s: float) -> bool:
        """Count a restart of ``group`` at ``now_s``. False if it exceeds the limit, in the window or in a row."""
        times = self._times[group]
        while times and now_s - times[0] > self._window_s:
            times.popleft()
        times.append(now_s)
        self._num_failed[group] += 1
        return max(len(times), self._num_failed[group]) <= self._limit

    def reset(self, group: str) -> None:
        """The group is ready again: its restarts in a row start over."""
        self._num_failed[group] = 0

    @property
    def rule(self) -> str:
        """The limit in words, for the error message."""
        return f"more than {self._limit} restarts in {self._window_s:g} s, or in a row without getting ready"
