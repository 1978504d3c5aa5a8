"""How often something may be started again before giving up is better. Pure: times are given."""

from __future__ import annotations

from collections import defaultdict, deque

LIMIT = 5
WINDOW_S = 60.0


class RestartLedger:
    """Remembers each group's recent restarts, and how many in a row have not made it ready."""

    def __init__(self, limit: int = LIMIT, window_s: float = WINDOW_S) -> None:
        self._limit = limit
        self._window_s = window_s
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)
        self._in_vain: defaultdict[str, int] = defaultdict(int)

    def allows(self, group: str, now_s: float) -> bool:
        """Note a restart of ``group`` at ``now_s``; False when it would be one too many in the window, or in a row."""
        times = self._times[group]
        while times and now_s - times[0] > self._window_s:
            times.popleft()
        times.append(now_s)
        self._in_vain[group] += 1
        return max(len(times), self._in_vain[group]) <= self._limit

    def restored(self, group: str) -> None:
        """It is ready again."""
        self._in_vain[group] = 0

    @property
    def rule(self) -> str:
        """In words, for the reason given."""
        return f"more than {self._limit} restarts in {self._window_s:g} s, or in a row without getting ready"
