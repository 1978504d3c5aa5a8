"""Whether other threads of this process compute: progress within native calls, which cannot report any themselves."""

from __future__ import annotations

import time

_MIN_COMPUTED_S = 0.2
"""CPU seconds that count as progress: more than idle threads use in minutes, and what a busy thread gets within 30 s
even on a machine where it has 1 % of a core."""


class ComputeProgress:
    """Measures the CPU time of all threads but the calling one. A thread that waits for a lock or a peer uses none."""

    def __init__(self) -> None:
        self._counted_s = _others_cpu_s()

    def made(self) -> bool:
        """True if the others have computed for long enough since the last call that returned True."""
        now_s = _others_cpu_s()
        if now_s - self._counted_s < _MIN_COMPUTED_S:
            return False
        self._counted_s = now_s
        return True


def _others_cpu_s() -> float:
    return time.process_time() - time.thread_time()
