"""Finds processes that hang while they start. Pure: the time is passed in.

The processes of a group wait for each other (the router for the ranks), so the group has hung when none of those that
are not ready has reported anything for too long. Loading weights is reported all the time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol, TypeVar

from mmserve.supervisor.child.protocol import Ready
from mmserve.supervisor.topology import Member
from mmserve.supervisor.watching.attended_time import AttendedTime

_LOOKS_PER_TIMEOUT = 8
_MAX_INTERVAL_S = 5.0


class Starting(Protocol):
    """The part of a ``Child`` that is looked at."""

    member: Member
    ready: Ready | None
    heard_s: float
    """When it was started, or reported last."""


_Child = TypeVar("_Child", bound=Starting)


class StartLimit:
    """``timeout_s``: 0 finds none."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._look_s = min(_MAX_INTERVAL_S, timeout_s / _LOOKS_PER_TIMEOUT)
        self._attended = AttendedTime(self._look_s)

    def interval_s(self, children: Iterable[Starting]) -> float | None:
        """Call ``overdue`` at least this often. None: not before a process is started."""
        return self._look_s if self._timeout_s and any(child.ready is None for child in children) else None

    def overdue(self, children: Iterable[_Child], now_s: float) -> list[tuple[_Child, str]]:
        """The children that hang, each with the reason in words."""
        if not self._timeout_s:
            return []
        self._attended.look(now_s)
        starting = defaultdict[str, list[_Child]](list)
        for child in children:
            if child.ready is None:
                starting[child.member.group].append(child)
        reason = f"it is not ready, and has reported nothing for {self._timeout_s:g} s (--start-timeout)"
        return [
            (child, reason)
            for group in starting.values()
            if self._attended.elapsed_s(max(child.heard_s for child in group), now_s) >= self._timeout_s
            for child in group
        ]
