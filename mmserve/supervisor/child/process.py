"""One child process, as the supervisor sees it: reports, signals, cause of its exit."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from mmserve.supervisor.child.protocol import Accepting, Failed, Ready, Report, decode_report
from mmserve.supervisor.topology import Member

_READ_NBYTES = 1 << 16
_HINTS: dict[int, str] = {
    signal.SIGKILL: " (out of memory?)",
    signal.SIGABRT: " (a library gave up, the lines above say why; libzmq does without file descriptors)",
}


class StartedProcess(Protocol):
    """What a Child needs of a process; ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """Negative: the signal that killed it. None: it runs, or nobody knows how it ended."""

    def wait(self, timeout: float) -> object:
        """Raises subprocess.TimeoutExpired if it has not ended within ``timeout`` seconds."""

    def send_signal(self, sig: int) -> None:
        """Does nothing if the process has ended."""


class Child:
    """A started process. ``report_fd`` becomes readable with reports, ``pidfd`` with the exit."""

    def __init__(self, member: Member, process: StartedProcess, pidfd: int, report_fd: int) -> None:
        """Owns the descriptors."""
        self.member = member
        self.report_fd = report_fd
        self.pidfd = pidfd
        self.started_s = self.heard_s = time.monotonic()
        """``heard_s``: when it was started, or reported last."""
        self.ready: Ready | None = None
        self.ready_s = math.nan
        """Time of its ready report; like ``started_s``, of the monotonic clock."""
        self.accepting = False
        """True once an HTTP worker takes requests."""
        self.reports_closed = False
        """True once the report pipe is at end of file."""
        self._failure: Failed | None = None
        self._process = process
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def reports(self) -> Iterator[Report]:
        """Reports since the last call. Ready and Failed are also kept."""
        for line in self._lines():
            try:
                report = decode_report(line)
            except msgspec.DecodeError:
                continue
            self.heard_s = time.monotonic()
            if isinstance(report, Ready):
                self.ready, self.ready_s = report, self.heard_s
            elif isinstance(report, Accepting):
                self.accepting = True
            elif isinstance(report, Failed):
                self._failure = report
            yield report

    def _lines(self) -> list[bytes]:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.report_fd, _READ_NBYTES):
                self._unread += chunk
            self.reports_closed = True
        *lines, self._unread = self._unread.split(b"\n")
        return lines

    def send_signal(self, signum: signal.Signals) -> None:
        """Does nothing if the process has ended."""
        self._process.send_signal(signum)

    @property
    def is_suspended(self) -> bool:
        """True if it was stopped by a signal or a debugger. False if it has ended."""
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state in "Tt"

    def wait(self, timeout_s: float) -> bool:
        """True if the process has ended within ``timeout_s``."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Close its descriptors. Call once, when it is no longer watched."""
        os.close(self.report_fd)
        os.close(self.pidfd)

    @property
    def cause(self) -> str:
        """Why it ended, in words. Valid after it has ended."""
        code = self._process.returncode
        if self._failure is not None:
            return f"failed: {self._failure.reason}"
        if code is None:
            return "ended, and the fork server did not say how"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}{_HINTS.get(-code, '')}"
        return f"ended unasked with code {code}"
