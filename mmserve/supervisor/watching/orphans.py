"""Processes whose parent has died: they become the supervisor's children, as they would those of a container's init.

So whatever ranks, visual servers and the fork servers have started stays below the supervisor, and is reaped.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Collection

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, orphans below this process become its children (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(known: Collection[int]) -> None:
    """Reap those that have ended, of this process's group. ``known``: processes that somebody else waits for."""
    while (pid := _ended()) and pid not in known:
        os.waitpid(pid, 0)


def _ended() -> int:
    """A child of this process's group that has ended and is not reaped; 0 if there is none."""
    try:
        found = os.waitid(os.P_PGID, os.getpgrp(), os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return found.si_pid if found else 0
