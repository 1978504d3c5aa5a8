"""Measures the phases of a process's start, for one log line."""

from __future__ import annotations

import time

import psutil


class StartupTimer:
    """``end(name)`` ends a phase. A phase begins where the one before ended, the first with the process itself."""

    def __init__(self) -> None:
        self._phase_start_s = psutil.Process().create_time()
        self._seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        now_s = time.time()
        self._seconds[name] = now_s - self._phase_start_s
        self._phase_start_s = now_s

    def __str__(self) -> str:
        parts = (f"{name} {seconds:.2f} s" for name, seconds in self._seconds.items())
        return f"{sum(self._seconds.values()):.2f} s in all: {', '.join(parts)}"
