"""Finds processes that are alive but stuck, from their heartbeats, and makes processes print their stacks."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterable, Sequence

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.health.heartbeat import INTERVAL_S, read_beat
from mmserve.monitoring.health.stuck import Watched, stuck_processes
from mmserve.supervisor.child.process import Child
from mmserve.supervisor.watching.attended_time import AttendedTime

_STACKS_S = 0.5
"""How long processes get to print their stacks."""
_LOOKS_PER_TIMEOUT = 8
logger = logging.getLogger(__name__)


class Watchdog:
    """Looks at the heartbeats of the processes that are ready. ``timeout_s``: 0 finds none."""

    def __init__(self, endpoints: Endpoints, timeout_s: float) -> None:
        self._endpoints = endpoints
        self._timeout_s = timeout_s
        self._look_s = min(INTERVAL_S, timeout_s / _LOOKS_PER_TIMEOUT)
        self._attended = AttendedTime(self._look_s)
        self._restarted_s = 0.0

    @property
    def interval_s(self) -> float | None:
        """Call ``stuck`` at least this often. None: never."""
        return self._look_s or None

    def restarted(self) -> None:
        """A process was restarted: others may have waited for it, so their time to make progress starts again."""
        self._restarted_s = time.monotonic()

    def stuck(self, children: Iterable[Child]) -> list[tuple[Child, str]]:
        """The children that are stuck, each with the reason in words."""
        if not self._timeout_s:
            return []
        now_s = time.monotonic()
        self._attended.look(now_s)
        ready = {child.member.name: child for child in children if child.ready is not None}
        reasons = stuck_processes(
            [watched for child in ready.values() if (watched := self._watched(child)) is not None],
            lambda since_s: self._attended.elapsed_s(since_s, now_s),
            silent_s=self._timeout_s,
            stalled_s=self._timeout_s,
            stalled_from_s=self._restarted_s,
        )
        return [(ready[name], reason) for name, reason in reasons.items()]

    def _watched(self, child: Child) -> Watched | None:
        """None if its heartbeat cannot be read now: this process's lack of descriptors is not the child's fault."""
        try:
            beat = read_beat(self._endpoints.heartbeat(child.member.name))
        except OSError as error:
            logger.warning("the heartbeat of %s cannot be read: %s", child.member.title, error)
            return None
        # The file may have a heartbeat of the process's predecessor.
        current = beat if beat and beat.pid == child.pid else None
        return Watched(child.member.name, child.member.group, child.ready_s, current)


def print_stacks(children: Sequence[Child]) -> None:
    """Make the processes print the stacks of their threads to the log. Blocks for up to half a second."""
    asked = []
    for child in children:
        title, pid = child.member.title, child.pid
        if child.is_suspended:
            logger.error("%s (process %d) is suspended (SIGSTOP) and cannot print its stacks", title, pid)
        else:
            logger.error("%s (process %d) prints the stacks of its threads:", title, pid)
            child.send_signal(signal.SIGUSR1)
            asked.append(child)
    deadline_s = time.monotonic() + _STACKS_S
    for child in asked:
        child.wait(max(0.0, deadline_s - time.monotonic()))
