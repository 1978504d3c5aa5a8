"""Measures the phases of a process's start, for one log line."""

from __future__ import annotations

import os
import time
from pathlib import Path


class StartupTimer:
    """``end(name)`` ends a phase. A phase begins where the one before ended, the first with the process itself."""

    def __init__(self) -> None:
        self._phase_start_s = _process_start_s()
        self._seconds: dict[str, float] = {}

    def end(self, name: str) -> None:
        now_s = _now_s()
        self._seconds[name] = now_s - self._phase_start_s
        self._phase_start_s = now_s

    def __str__(self) -> str:
        parts = (f"{name} {seconds:.2f} s" for name, seconds in self._seconds.items())
        return f"{sum(self._seconds.values()):.2f} s in all: {', '.join(parts)}"


def _now_s() -> float:
    """On the clock of ``_process_start_s``, which no change of the time of day affects."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _process_start_s() -> float:
    """When the kernel started this process, in seconds since the machine's start."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(after_name[_START_FIELD]) / os.sysconf("SC_CLK_TCK")


_START_FIELD = 19
"""Place of ``starttime`` after the process's name (proc_pid_stat(5): field 22)."""
