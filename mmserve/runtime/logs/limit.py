"""Limits how often one place in the code logs a warning or an error, so that a flood of bad input fills no disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

BURST = 30
PER_S = 2.0


class RepeatLimit(logging.Filter):
    """For each line of code: BURST records at once, and PER_S a second on average. What was left out is counted in the
    next record that passes. Records below WARNING all pass."""

    def __init__(self, burst: int = BURST, per_s: float = PER_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        self._sites: dict[tuple[str, int], tuple[float, float, int]] = {}
        """(file, line) -> (records that may pass, when that was, records left out)."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        now_s, site = self._clock(), (record.pathname, record.lineno)
        left, then_s, num_dropped = self._sites.get(site, (float(self._burst), now_s, 0))
        left = min(self._burst, left + (now_s - then_s) * self._per_s)
        if left < 1:
            self._sites[site] = left, now_s, num_dropped + 1
            return False
        if num_dropped:
            record.msg, record.args = f"{record.getMessage()} (and {num_dropped} like this, left out)", ()
        self._sites[site] = left - 1, now_s, 0
        return True
