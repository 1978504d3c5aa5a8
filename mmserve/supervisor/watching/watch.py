"""Turns signals, reports of children and exits of children into events, with one blocking wait on descriptors.

Orphans that have ended are reaped on the way.
"""

from __future__ import annotations

import selectors
import signal
import socket
from dataclasses import dataclass
from types import TracebackType

from mmserve.supervisor.child.process import Child
from mmserve.supervisor.child.protocol import Report
from mmserve.supervisor.watching.orphans import reap_orphans

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Signalled:
    signum: int


@dataclass(frozen=True)
class Reported:
    child: Child
    report: Report


@dataclass(frozen=True)
class Exited:
    """The child has ended and is no longer watched. ``cause``: why, in words."""

    child: Child
    cause: str


Event = Signalled | Reported | Exited


class Watch:
    """A context manager for the main thread. From entry on, signals are only delivered as events."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._signals, self._signals_write = socket.socketpair()
        self._signals.setblocking(False)
        self._signals_write.setblocking(False)
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        self._watched: set[Child] = set()

    def __enter__(self) -> Watch:
        signal.set_wakeup_fd(self._signals_write.fileno(), warn_on_full_buffer=False)
        for signum in HANDLED:
            # A signal that is ignored, as by nohup, stays ignored.
            if signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, lambda *_: None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The handlers stay: a signal must not interrupt the cleanup.
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._signals.close()
        self._signals_write.close()

    def add(self, child: Child) -> None:
        self._watched.add(child)
        for fd in (child.pidfd, child.report_fd):
            self._selector.register(fd, selectors.EVENT_READ, child)

    def remove(self, child: Child) -> None:
        """Stop watching a child and close its descriptors. Idempotent."""
        if child not in self._watched:
            return
        self._watched.remove(child)
        self._selector.unregister(child.pidfd)
        if not child.reports_closed:
            self._selector.unregister(child.report_fd)
        child.close()

    def wait(self, timeout_s: float | None = None) -> list[Event]:
        """Events since the last call, in any order. Waits for the first one, at most ``timeout_s``."""
        events: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            if key.data in self._watched:
                events.extend(self._read(key.data))
                if key.fd == key.data.pidfd and key.data.wait(0):
                    self.remove(key.data)
                    events.append(Exited(key.data, key.data.cause))
        # Also one that arrived while ``select`` returned: an exit in the same moment is then no reason to start again.
        events.extend(map(Signalled, self._received()))
        reap_orphans([child.pid for child in self._watched])
        return events

    def _read(self, child: Child) -> list[Event]:
        """New reports of a child. They are read before its exit is handled, because they may say why it exited."""
        if child.reports_closed:
            return []
        events: list[Event] = [Reported(child, report) for report in child.reports()]
        if child.reports_closed:
            self._selector.unregister(child.report_fd)
        return events

    def _received(self) -> bytes:
        try:
            return self._signals.recv(64)
        except BlockingIOError:
            return b""
