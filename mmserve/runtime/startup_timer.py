"""Where the time of a start goes. Knows no phase by name."""

from __future__ import annotations

import time

import psutil


class StartupTimer:
    """``end("x")`` ends a phase that began where the one before ended, the first with the process itself."""

    def __init__(self) -> None:
        self._began_s = psutil.Process().create_time()
        self._seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        now_s = time.time()
        self._seconds[name] = now_s - self._began_s
        self._began_s = now_s

    def __str__(self) -> str:
        parts = (f"{name} {seconds:.2f} s" for name, seconds in self._seconds.items())
        return f"{sum(self._seconds.values()):.2f} s in all: {', '.join(parts)}"
