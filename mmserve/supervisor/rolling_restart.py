"""Which HTTP worker is replaced by which, one after another: the state of a rolling restart. Pure.

A worker and its successor live at the same time, so they need different endpoints. There is one more index than there
are workers: the successor takes the free one, and the index of the worker that has left is the next free one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable

from mmserve.runtime.shortage import OUT_OF_RESOURCES
from mmserve.supervisor.topology import Member


class RollingRestart:
    """``old`` leaves when ``new`` is ready. Both are None while nothing is replaced."""

    def __init__(self) -> None:
        self._waiting: deque[Member] = deque()
        self.old: Member | None = None
        self.new: Member | None = None

    def request(self, workers: Iterable[Member]) -> None:
        """Replace these workers, after the one that is being replaced now. Replaces the list of an earlier request."""
        self._waiting = deque(worker for worker in workers if worker not in (self.old, self.new))

    def begin(self, workers: list[Member]) -> bool:
        """Choose the next worker and its successor. False if one is being replaced, or none is left."""
        if self.old is not None or not self._waiting:
            return False
        self.old = self._waiting.popleft()
        used = {worker.index for worker in workers}
        self.new = Member(self.old.role, next(index for index in range(len(used) + 1) if index not in used))
        return True

    def finish(self) -> None:
        """``old`` has left."""
        self.old = self.new = None

    def give_up(self) -> None:
        """``new`` did not start: keep ``old`` and all others."""
        self._waiting.clear()
        self.finish()


def has_terminal() -> bool:
    """True if this process has a controlling terminal, as far as can be seen. One that loses it gets a SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError as error:
        return error.errno in OUT_OF_RESOURCES
    return True
