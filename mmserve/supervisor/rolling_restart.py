"""Replaces the HTTP workers one after another, on SIGHUP: each leaves when its successor is ready.

A worker and its successor live at the same time, so they need different endpoints. There is one more index than there
are workers: the successor takes the free one, and the index of the worker that has left is the next free one.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque

from mmserve.config.resolved.process import RETIRE
from mmserve.runtime.shortage import OUT_OF_RESOURCES
from mmserve.supervisor.children import Children
from mmserve.supervisor.topology import Member

logger = logging.getLogger(__name__)


class RollingRestart:
    """Which worker is replaced by which. The supervisor says when one of them is ready or has ended."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._had_terminal = has_terminal()
        self._waiting: deque[Member] = deque()
        self._old: Member | None = None
        self._new: Member | None = None
        """Both are None while nothing is replaced."""

    def is_asked_by(self, signum: int) -> bool:
        """True for SIGHUP, but for the one that a terminal sends when it is closed: that one ends the server."""
        return signum == signal.SIGHUP and not (self._had_terminal and not has_terminal())

    def begin(self) -> None:
        """Replace all workers of now, after the one that is being replaced. Takes the place of an earlier request."""
        logger.info("SIGHUP: replacing the HTTP workers, one after another")
        workers = self._children.http_workers()
        self._waiting = deque(worker for worker in workers if not self.concerns(worker))
        self._replace_next()

    def concerns(self, member: Member) -> bool:
        """True for the worker that is being replaced, and for its successor."""
        return member in (self._old, self._new)

    def ready(self, member: Member) -> None:
        """A process is ready: if it is the successor, the worker before it is told to leave."""
        if member == self._new and self._old is not None:
            self._children.send_signal([self._old], RETIRE)

    def ended(self, member: Member, cause: str) -> None:
        """A worker has left for its successor, or a successor has ended, or a worker before it had to."""
        self._children.members.remove(member)
        if member == self._old:
            logger.info("%s has left (%s)", member.title, cause)
        else:
            logger.error("%s, the successor of another worker, %s; the others stay", member.title, cause)
            self._waiting.clear()
        self._old = self._new = None
        self._replace_next()

    def _replace_next(self) -> None:
        """Start the successor of the next worker, unless one is being replaced or none is left."""
        if self._old is not None or not self._waiting:
            return
        workers, self._old = self._children.http_workers(), self._waiting.popleft()
        used = {worker.index for worker in workers}
        self._new = Member(self._old.role, next(index for index in range(len(used) + 1) if index not in used))
        self._children.members.insert(self._children.members.index(workers[-1]) + 1, self._new)
        self._children.incarnations[self._new.group] += 1
        self._children.start_missing()


def has_terminal() -> bool:
    """True if this process has a controlling terminal, as far as can be seen. One that loses it gets a SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError as error:
        return error.errno in OUT_OF_RESOURCES
    return True
