"""The processes of one server: which there are to be, which run, and which are ready. Starts and kills them.

It decides nothing: when a process is started again, and whether a death ends the server, is the supervisor's business.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from mmserve.messages.status import ProcessRow, ProcessTable
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.child.process import Child
from mmserve.supervisor.topology import Member
from mmserve.supervisor.watching.watch import HANDLED, Watch

_KILL_WAIT_S = 10.0
Spawn = Callable[[Member, int], Child]
"""Starts the process of a member in an incarnation. Raises OSError for want of descriptors, processes or memory."""
logger = logging.getLogger(__name__)


class Children:
    """At most one process for each of ``members``. Iterating gives the processes that run."""

    def __init__(self, members: list[Member], spawn: Spawn, watch: Watch) -> None:
        """``watch`` watches each process from its start."""
        self.members = members
        """In start order. Changes while HTTP workers are replaced."""
        self.incarnations: defaultdict[str, int] = defaultdict(int)
        """Group -> how often it was started again."""
        self._spawn = spawn
        self._watch = watch
        self._running: dict[Member, Child] = {}
        self._started_s = time.monotonic()

    def __iter__(self) -> Iterator[Child]:
        return iter(list(self._running.values()))

    def of(self, member: Member) -> Child | None:
        """The member's process; None if it does not run."""
        return self._running.get(member)

    def is_current(self, child: Child) -> bool:
        """False if its member has another process by now, or none."""
        return self._running.get(child.member) is child

    def group(self, member: Member) -> list[Member]:
        """The members that restart together with ``member``, itself included."""
        return [other for other in self.members if other.group == member.group]

    def http_workers(self) -> list[Member]:
        return [member for member in self.members if member.role.listens == "http"]

    def are_ready(self, members: Iterable[Member]) -> bool:
        """True if each of them runs and has reported that it is ready."""
        children = (self._running.get(member) for member in members)
        return all(child is not None and child.ready is not None for child in children)

    @property
    def engine_ready(self) -> bool:
        return self.are_ready(member for member in self.members if member.role.engine)

    def missing(self) -> list[Member]:
        """The members that are not ready."""
        return [member for member in self.members if not self.are_ready([member])]

    def not_accepting(self) -> list[Member]:
        """The HTTP workers that have not reported that they take requests."""
        children = {member: self._running.get(member) for member in self.http_workers()}
        return [member for member, child in children.items() if child is None or not child.accepting]

    def start_unblocked(self) -> None:
        """At the start: start those whose predecessors are ready. Raises StartupError."""
        for member in self.members:
            waits_for = [other for other in self.members if other.role.name in member.role.waits_for]
            if member not in self._running and self.are_ready(waits_for):
                try:
                    self._start(member)
                except OSError as error:
                    raise StartupError(f"{member.title} cannot be started: {error}") from error

    def start_missing(self) -> bool:
        """Start all processes that do not run. False if the machine lacks what one needs: call again later."""
        for member in [member for member in self.members if member not in self._running]:
            try:
                self._start(member)
            except OSError as error:
                logger.error("%s cannot be started now, and is tried again: %s", member.title, error)
                return False
        return True

    def forget(self, child: Child) -> None:
        """Drop a process that has ended by itself."""
        del self._running[child.member]

    def send_signal(self, members: Iterable[Member], signum: signal.Signals) -> None:
        """Send a signal to those of them that run."""
        for member in members:
            if member in self._running:
                self._running[member].send_signal(signum)

    def kill(self, members: Iterable[Member]) -> None:
        """Kill those of them that run, one after another, and wait for each."""
        for member in members:
            child = self._running.pop(member, None)
            if child is None:
                continue
            child.send_signal(signal.SIGKILL)
            if not child.wait(_KILL_WAIT_S):
                logger.error("%s (process %d) does not end even when killed", member.title, child.pid)
            self._watch.remove(child)

    def table(self) -> ProcessTable:
        """What the health server shows."""
        rows = []
        for member in self.members:
            child, restarts = self._running.get(member), self.incarnations[member.group]
            pid, started_s = (child.pid, child.started_s) if child else (0, 0.0)
            ready_s = child.ready_s if child and child.ready is not None else None
            rows.append(ProcessRow(member.name, member.title, member.group, pid, started_s, ready_s, restarts))
        return ProcessTable(supervisor_pid=os.getpid(), started_s=self._started_s, processes=tuple(rows))

    def _start(self, member: Member) -> None:
        # The child inherits the blocked mask: a Ctrl-C must not end it before it has installed its handlers.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            child = self._spawn(member, self.incarnations[member.group])
            self._running[member] = child
            self._watch.add(child)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        logger.debug("started %s, process %d", member.title, child.pid)
