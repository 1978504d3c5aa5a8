"""The supervisor's side of a fork server: asks it to fork, and learns from it how the forked processes ended."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import time

from mmserve.supervisor.child.fork_messages import (
    Ended,
    Forked,
    ForkRequest,
    Message,
    NotForked,
    Serving,
    receive,
    send,
)

_ANSWER_S = 5.0
"""A fork takes milliseconds."""
_STATUS_S = 1.0
"""Longest wait for the status of a process that has ended: it is reaped at once."""


class ForkLink:
    """The supervisor's end of the link to one fork server."""

    def __init__(self) -> None:
        """Raises OSError without descriptors."""
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        """``theirs``: the fork server's end, to be closed when it has been passed on."""
        self._serving = False
        self._returncodes: dict[int, int] = {}

    def close(self) -> None:
        self._socket.close()
        self.theirs.close()

    def fork(self, request: ForkRequest, fds: tuple[int, ...]) -> tuple[ForkedProcess, int] | None:
        """The process and its pidfd, which the caller owns. None if the fork server does not serve yet, or has ended.

        Raises TimeoutError if it serves and does not answer: it may fork later, so it has to be killed. Raises other
        OSErrors if the machine lacks what a process needs.
        """
        with contextlib.suppress(TimeoutError):
            while not self._serving and self._read(0.0) is not None:
                pass
        if not self._serving:
            return None
        try:
            send(self._socket, request, fds)
        except (BrokenPipeError, ConnectionResetError):
            return None
        return self._answer(time.monotonic() + _ANSWER_S)

    def _answer(self, until_s: float) -> tuple[ForkedProcess, int] | None:
        while (received := self._read(max(0.0, until_s - time.monotonic()))) is not None:
            match received:
                case Forked(pid), [pidfd]:
                    return ForkedProcess(pid, pidfd, self), pidfd
                case Forked(pid), _:  # no descriptor was left for the pidfd: nobody could watch the process
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                case NotForked(code), _:
                    raise OSError(code, os.strerror(code))
        return None

    def returncode(self, pid: int) -> int | None:
        """How a process that has ended did so; None if the fork server ended before it could say so."""
        with contextlib.suppress(TimeoutError):
            while pid not in self._returncodes and self._read(_STATUS_S) is not None:
                pass
        return self._returncodes.pop(pid, None)

    def _read(self, timeout_s: float) -> tuple[Message, list[int]] | None:
        """The next message; None when the fork server has ended, or the link is closed. Raises TimeoutError."""
        if self._socket.fileno() < 0:
            return None
        if not select.select([self._socket], [], [], timeout_s)[0]:
            raise TimeoutError("the fork server does not answer")
        received = receive(self._socket)
        match received:
            case Serving(), _:
                self._serving = True
            case Ended(pid, returncode), _:
                self._returncodes[pid] = returncode
        return received


class ForkedProcess:
    """A process that the fork server has forked. Has what ``process.StartedProcess`` asks for."""

    def __init__(self, pid: int, pidfd: int, link: ForkLink) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._link = link
        self._has_ended = False

    def wait(self, timeout: float) -> None:
        """Raises subprocess.TimeoutExpired."""
        if self._has_ended:
            return
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(timeout * 1000):
            raise subprocess.TimeoutExpired("mmserve", timeout)
        self._has_ended = True
        try:  # it is a child of this process if the fork server has ended
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            self.returncode = self._link.returncode(self.pid)

    def send_signal(self, sig: int) -> None:
        """Does nothing if the process has ended."""
        if not self._has_ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sig)
