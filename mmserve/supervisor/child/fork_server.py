"""A fork server: a process that imports modules once and becomes each process that needs them, by a fork.

There are two: one without torch, whose modules take 0.2 s of a core, and one with torch, which takes 1.5 s; the first
forks the second. By a fork a process begins within milliseconds, at the start and after a crash, and shares the memory
of what was imported. A fork server has one thread, starts no kernels and opens no device: a process with either cannot
be forked safely.
"""

from __future__ import annotations

import importlib
import os
import selectors
import signal
import socket
from contextlib import closing

import msgspec

from mmserve.config.resolved.process import Stop
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.runtime.memory.allocator import importing
from mmserve.supervisor.child.fork_messages import Ended, Forked, ForkRequest, NotForked, Serving, receive, send
from mmserve.supervisor.child.protocol import ChildSpec, Reporter


def serve(spec: ChildSpec, reporter: Reporter) -> tuple[ChildSpec, Reporter]:
    """Returns in each forked process, with its own spec and reporter, signals blocked and handlers to be installed.

    In the fork server itself it ends by Stop: when the supervisor is gone, and after a SIGTERM when no forked process
    is left, as nobody else could say how that one has ended.
    """
    with importing():
        for module in spec.preloads:
            importlib.import_module(module)
    with (
        closing(HeartbeatSender(Endpoints(spec.deployment.run_dir), f"{spec.role}-{spec.index}")) as heartbeat,
        closing(_ForkServer(spec)) as server,
    ):
        reporter.ready({})
        own = server.until_forked(heartbeat)
    os.close(spec.report_fd)
    return own, Reporter(own.report_fd)


class _ForkServer:
    """The link to the supervisor and the processes that were forked."""

    def __init__(self, spec: ChildSpec) -> None:
        assert spec.fork_link_fd is not None
        self._spec = spec
        self._link = socket.socket(fileno=spec.fork_link_fd)
        self._pidfds: dict[int, int] = {}
        """pidfd -> pid."""
        self._told_to_stop, self._tell_to_stop = socket.socketpair()
        self._tell_to_stop.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for file in (self._link, self._told_to_stop):
            self._selector.register(file, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._tell_to_stop.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        send(self._link, Serving())

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.close()
        for pidfd in self._pidfds:
            os.close(pidfd)
        for file in (self._link, self._told_to_stop, self._tell_to_stop):
            file.close()

    def until_forked(self, heartbeat: HeartbeatSender) -> ChildSpec:
        """Fork at each request. Returns in the forked process. Raises Stop."""
        stops = False
        while not stops or self._pidfds:
            heartbeat.beat(busy=False)
            for key, _ in self._selector.select(INTERVAL_S):
                if key.fd in self._pidfds:
                    self._reap(key.fd)
                elif key.fileobj is self._told_to_stop:
                    stops = bool(self._told_to_stop.recv(64))
                elif (own := self._answer()) is not None:
                    return own
        raise Stop

    def _answer(self) -> ChildSpec | None:
        """The spec of the process that this one has become; None in the fork server."""
        if (received := receive(self._link)) is None:
            raise Stop
        request, fds = received
        assert isinstance(request, ForkRequest)
        # A signal that reaches the forked process waits until that has handlers of its own.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            if (pid := os.fork()) == 0:
                return _spec_of(request, fds, self._spec)
            self._adopt(pid)
        except OSError as error:
            send(self._link, NotForked(error.errno or 0))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for fd in fds:
            os.close(fd)
        return None

    def _adopt(self, pid: int) -> None:
        """Watch a forked process. It is killed if there is no descriptor to do so (OSError)."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._pidfds[pidfd] = pid
        self._selector.register(pidfd, selectors.EVENT_READ)
        send(self._link, Forked(pid), (pidfd,))

    def _reap(self, pidfd: int) -> None:
        pid = self._pidfds.pop(pidfd)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        send(self._link, Ended(pid, os.waitstatus_to_exitcode(status)))


def _spec_of(request: ForkRequest, fds: list[int], spec: ChildSpec) -> ChildSpec:
    own = dict[str, int | None](rendezvous_fd=None, listen_fd=None, fork_link_fd=None)
    return msgspec.structs.replace(
        spec,
        role=request.role,
        index=request.index,
        title=request.title,
        target=request.target,
        preloads=request.preloads,
        **own | dict(zip(request.fds, fds, strict=True)),
    )
