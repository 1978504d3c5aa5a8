"""Starts child processes: by a new Python, or by the fork server, which has imported torch already."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mmserve.config.resolved.deployment import Deployment
from mmserve.supervisor.child.fork_link import ForkLink
from mmserve.supervisor.child.fork_messages import ForkRequest
from mmserve.supervisor.child.process import Child
from mmserve.supervisor.child.protocol import ChildSpec
from mmserve.supervisor.child.rendezvous import Rendezvous
from mmserve.supervisor.topology import Listens, Member

_CHILD_MODULE = "mmserve.supervisor.child.main"
_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000", "OPENBLAS_NUM_THREADS": "1"}
"""Defaults for the environment. OpenMP threads spin briefly, then sleep: ranks and the vision tower share the cores,
and a thread that spins for another one without a core delays both. numpy's BLAS, which nothing here uses, would start
threads at its import, and a process with several threads is not to be forked."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class InheritedFds:
    """The descriptors that children inherit from the supervisor."""

    parent_death_fd: int
    arena_fd: int
    rendezvous: Rendezvous
    """For the processes of the engine."""
    listen_fds: Mapping[Listens, int]


class Spawner:
    """Starts the process of a member. Call it from the main thread with signals blocked; a new Python inherits the
    mask, until it has installed its handlers."""

    def __init__(self, deployment: Deployment, inherited: InheritedFds) -> None:
        self._deployment = deployment
        self._inherited = inherited
        self._link: ForkLink | None = None
        self._fork_server: Child | None = None

    def close(self) -> None:
        """Call when all processes have ended."""
        if self._link is not None:
            self._link.close()

    def __call__(self, member: Member, incarnation: int) -> Child:
        """Raises OSError if there are no descriptors, processes or memory for it."""
        rendezvous_fd = self._inherited.rendezvous.fd(incarnation) if member.role.engine else None
        report_fd, report_write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(report_fd, False)
        try:
            child = None
            if member.role.forked:
                child = self._forked(member, report_fd, report_write_fd, rendezvous_fd)
            return child or self._executed(member, report_fd, report_write_fd, rendezvous_fd)
        except BaseException:  # re-raised; without a Child object this end would stay open
            os.close(report_fd)
            raise
        finally:
            # Only the child keeps this end, so that its exit gives end of file.
            os.close(report_write_fd)

    def _forked(self, member: Member, report_fd: int, report_write_fd: int, rendezvous_fd: int | None) -> Child | None:
        """None if no fork server serves now."""
        if self._link is None or self._fork_server is None:
            return None
        role = member.role
        request = ForkRequest(role=role.name, index=member.index, title=member.title, target=role.target)
        fds = (report_write_fd,) if rendezvous_fd is None else (report_write_fd, rendezvous_fd)
        try:
            forked = self._link.fork(request, fds)
        except TimeoutError as error:
            logger.error("%s; it is killed, and %s is started without it", error, member.title)
            self._fork_server.send_signal(signal.SIGKILL)
            return None
        return None if forked is None else Child(member, *forked, report_fd)

    def _executed(self, member: Member, report_fd: int, report_write_fd: int, rendezvous_fd: int | None) -> Child:
        link = ForkLink() if member.role.preloads else None
        spec = ChildSpec(
            deployment=self._deployment,
            role=member.role.name,
            index=member.index,
            title=member.title,
            target=member.role.target,
            report_fd=report_write_fd,
            parent_death_fd=self._inherited.parent_death_fd,
            arena_fd=self._inherited.arena_fd,
            rendezvous_fd=rendezvous_fd,
            listen_fd=self._inherited.listen_fds.get(member.role.listens),
            preloads=member.role.preloads,
            fork_link_fd=None if link is None else link.theirs.fileno(),
        )
        try:
            child = _execute(member, spec, report_fd)
        except BaseException:  # re-raised
            if link is not None:
                link.close()
            raise
        if link is not None:
            self._now_forks(link, child)
        return child

    def _now_forks(self, link: ForkLink, fork_server: Child) -> None:
        link.theirs.close()
        if self._link is not None:
            self._link.close()
        self._link, self._fork_server = link, fork_server


def _execute(member: Member, spec: ChildSpec, report_fd: int) -> Child:
    """A new Python that gets ``spec`` on its stdin."""
    fds = [spec.report_fd, spec.parent_death_fd, spec.arena_fd, spec.rendezvous_fd, spec.listen_fd, spec.fork_link_fd]
    popen = subprocess.Popen(
        _command(),
        stdin=subprocess.PIPE,
        env={**_ENVIRONMENT, **os.environ},
        pass_fds=[fd for fd in fds if fd is not None],
    )
    assert popen.stdin is not None
    try:
        # A child that has died already is handled when its exit is seen.
        with contextlib.suppress(BrokenPipeError), popen.stdin:
            popen.stdin.write(msgspec.msgpack.encode(spec))
        return Child(member, popen, os.pidfd_open(popen.pid), report_fd)
    except BaseException:  # re-raised; without a Child object nobody would end the process
        popen.kill()
        popen.wait()
        raise


def _command() -> list[str]:
    # Children use the same import path, and the working directory only if this process does.
    looks_in_cwd = any(entry in ("", str(Path.cwd())) for entry in sys.path)
    return [sys.executable, *([] if looks_in_cwd else ["-P"]), "-m", _CHILD_MODULE]
