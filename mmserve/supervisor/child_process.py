"""One child process: how it is started, what it reports, how it ends. Decides nothing."""

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
from mmserve.supervisor.child_protocol import ChildSpec, Failed, Ready, Report, decode_report
from mmserve.supervisor.topology import Listens, Member

_READ_NBYTES = 1 << 16
_CHILD_MODULE = "mmserve.supervisor.child"
_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000"}
"""Unless the user says otherwise: torch's CPU threads spin briefly, then sleep. Ranks and the vision tower share the
cores, and a thread that spins for one that has no core to run on holds everybody up."""


@dataclass(frozen=True)
class InheritedFds:
    """Descriptors that children get from the supervisor; nothing else is inherited."""

    lifeline_fd: int
    arena_fd: int
    listen_fds: Mapping[Listens, int]


class Child:
    """A started process. ``report_fd`` and ``pidfd`` become readable with reports and with its end."""

    def __init__(self, member: Member, popen: subprocess.Popen[bytes], report_fd: int) -> None:
        self.member = member
        self.report_fd = report_fd
        self.pidfd = os.pidfd_open(popen.pid)
        self.started_s = time.monotonic()
        self.ready: Ready | None = None
        self.ready_s = math.nan
        """When it reported ready; of the monotonic clock, as ``started_s`` is."""
        self.hung_up = False
        """No report will come any more."""
        self._failure: Failed | None = None
        self._popen = popen
        self._unread = b""

    @property
    def pid(self) -> int:
        return self._popen.pid

    def reports(self) -> Iterator[Report]:
        """What has come since the last call; remembers readiness and failure."""
        for line in self._lines():
            try:
                report = decode_report(line)
            except msgspec.DecodeError:
                continue
            if isinstance(report, Ready):
                self.ready, self.ready_s = report, time.monotonic()
            elif isinstance(report, Failed):
                self._failure = report
            yield report

    def _lines(self) -> list[bytes]:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self.report_fd, _READ_NBYTES):
                self._unread += chunk
            self.hung_up = True
        *lines, self._unread = self._unread.split(b"\n")
        return lines

    def send_signal(self, signum: signal.Signals) -> None:
        """Nothing happens when it has ended."""
        self._popen.send_signal(signum)

    def wait(self, timeout_s: float) -> bool:
        """Has it ended within ``timeout_s``?"""
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Give back its descriptors; call once, when it is no longer watched."""
        os.close(self.report_fd)
        os.close(self.pidfd)

    @property
    def cause(self) -> str:
        """Why it ended, in words; to be asked after its end."""
        code = self._popen.returncode
        if self._failure is not None:
            return f"failed: {self._failure.reason}"
        if code is not None and code < 0:
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            return f"was killed by {signal.Signals(-code).name}{hint}"
        return f"ended unasked with code {code}"


def spawn(member: Member, incarnation: int, deployment: Deployment, inheritance: InheritedFds) -> Child:
    """Start the process of ``member``. Call from the main thread, with SIGINT blocked (it is inherited so)."""
    report_fd, report_write_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(report_fd, False)
    listen_fd = inheritance.listen_fds.get(member.role.listens)
    launch = ChildSpec(
        deployment=deployment,
        role=member.role.name,
        index=member.index,
        incarnation=incarnation,
        title=member.title,
        target=member.role.target,
        report_fd=report_write_fd,
        lifeline_fd=inheritance.lifeline_fd,
        arena_fd=inheritance.arena_fd,
        listen_fd=listen_fd,
    )
    inherited = [report_write_fd, inheritance.lifeline_fd, inheritance.arena_fd]
    try:
        popen = subprocess.Popen(
            _command(),
            stdin=subprocess.PIPE,
            env={**_ENVIRONMENT, **os.environ},
            pass_fds=inherited if listen_fd is None else [*inherited, listen_fd],
        )
    except BaseException:  # nothing is swallowed: without a child nobody else would ever close this end
        os.close(report_fd)
        raise
    finally:
        # Held by the child alone.
        os.close(report_write_fd)
    assert popen.stdin is not None
    # A child that dies this early is noticed by its end, not here.
    with contextlib.suppress(BrokenPipeError), popen.stdin:
        popen.stdin.write(msgspec.msgpack.encode(launch))
    return Child(member, popen, report_fd)


def _command() -> list[str]:
    # Children import from where we do, and from the working directory only if we do.
    looks_in_cwd = any(entry in ("", str(Path.cwd())) for entry in sys.path)
    return [sys.executable, *([] if looks_in_cwd else ["-P"]), "-m", _CHILD_MODULE]
