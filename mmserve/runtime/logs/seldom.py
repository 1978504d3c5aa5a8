"""Lets the same line be logged once a minute, for trouble that is tried again every second and lasts for hours."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_INTERVAL_S = 60.0
_MAX_LINES = 256


class Seldom:
    """Remembers the lines that were due last."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due_s: OrderedDict[str, float] = OrderedDict()

    def is_due(self, line: str) -> bool:
        """False if it was due less than a minute ago."""
        now_s = self._clock()
        if self._due_s.get(line, now_s) > now_s:
            return False
        self._due_s.pop(line, None)
        self._due_s[line] = now_s + _INTERVAL_S
        if len(self._due_s) > _MAX_LINES:
            self._due_s.popitem(last=False)
        return True
