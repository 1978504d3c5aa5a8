"""One child process, as the supervisor sees it: spawning, reports, signals, cause of its exit."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mmserve.config.deployment import Deployment
from mmserve.supervisor.child.protocol import Accepting, ChildSpec, Failed, Ready, Report, decode_report
from mmserve.supervisor.child.rendezvous import Rendezvous
from mmserve.supervisor.topology import Listens, Member

_READ_NBYTES = 1 << 16
_CHILD_MODULE = "mmserve.supervisor.child.main"
_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000"}
"""Defaults for the environment. OpenMP threads spin briefly, then sleep: ranks and the vision tower share the cores,
and a thread that spins for another one without a core delays both."""
_HINTS: dict[int, str] = {
    signal.SIGKILL: " (out of memory?)",
    signal.SIGABRT: " (a library gave up, the lines above say why; libzmq does without file descriptors)",
}


@dataclass(frozen=True)
class InheritedFds:
    """The descriptors that children inherit from the supervisor."""

    parent_death_fd: int
    arena_fd: int
    rendezvous: Rendezvous
    """For the processes of the engine."""
    listen_fds: Mapping[Listens, int]


class Child:
    """A started process. ``report_fd`` becomes readable with reports, ``pidfd`` with the exit."""

    def __init__(self, member: Member, popen: subprocess.Popen[bytes], report_fd: int) -> None:
        self.member = member
        self.report_fd = report_fd
        self.pidfd = os.pidfd_open(popen.pid)
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
        self._popen = popen
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._popen.pid

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
        self._popen.send_signal(signum)

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
            self._popen.wait(timeout_s)
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
        code = self._popen.returncode
        if self._failure is not None:
            return f"failed: {self._failure.reason}"
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}{_HINTS.get(-code, '')}"
        return f"ended unasked with code {code}"


def spawn(member: Member, incarnation: int, deployment: Deployment, inherited: InheritedFds) -> Child:
    """Start the process of ``member``. Call from the main thread with signals blocked; the child inherits the mask.

    Raises OSError if there are no descriptors, processes or memory for it.
    """
    rendezvous_fd = inherited.rendezvous.fd(incarnation) if member.role.engine else None
    listen_fd = inherited.listen_fds.get(member.role.listens)
    report_fd, report_write_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(report_fd, False)
    spec = ChildSpec(
        deployment=deployment,
        role=member.role.name,
        index=member.index,
        incarnation=incarnation,
        title=member.title,
        target=member.role.target,
        report_fd=report_write_fd,
        parent_death_fd=inherited.parent_death_fd,
        arena_fd=inherited.arena_fd,
        rendezvous_fd=rendezvous_fd,
        listen_fd=listen_fd,
    )
    all_fds = [report_write_fd, inherited.parent_death_fd, inherited.arena_fd, rendezvous_fd, listen_fd]
    try:
        popen = subprocess.Popen(
            _command(),
            stdin=subprocess.PIPE,
            env={**_ENVIRONMENT, **os.environ},
            pass_fds=[fd for fd in all_fds if fd is not None],
        )
    except BaseException:  # re-raised; without a Child object this end would stay open
        os.close(report_fd)
        raise
    finally:
        # Only the child keeps this end, so that its exit gives end of file.
        os.close(report_write_fd)
    assert popen.stdin is not None
    try:
        # A child that has died already is handled when its exit is seen.
        with contextlib.suppress(BrokenPipeError), popen.stdin:
            popen.stdin.write(msgspec.msgpack.encode(spec))
        return Child(member, popen, report_fd)
    except BaseException:  # re-raised; without a Child object nobody would end the process
        os.close(report_fd)
        popen.kill()
        popen.wait()
        raise


def _command() -> list[str]:
    # Children use the same import path, and the working directory only if this process does.
    looks_in_cwd = any(entry in ("", str(Path.cwd())) for entry in sys.path)
    return [sys.executable, *([] if looks_in_cwd else ["-P"]), "-m", _CHILD_MODULE]
