"""Starts child processes: by a fork server, which has imported their modules already, or by a new Python."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from mmserve.config.resolved.deployment import Deployment
from mmserve.supervisor.child.fork_link import ForkLink
from mmserve.supervisor.child.fork_messages import Descriptor, ForkRequest
from mmserve.supervisor.child.process import Child
from mmserve.supervisor.child.protocol import ChildSpec
from mmserve.supervisor.child.rendezvous import Rendezvous
from mmserve.supervisor.topology import Listens, Member, Role

_CHILD_MODULE = "mmserve.supervisor.child.main"
_ENVIRONMENT = {"GOMP_SPINCOUNT": "1000", "OPENBLAS_NUM_THREADS": "1"}
"""Defaults for the environment. OpenMP threads spin briefly, then sleep: ranks and the vision tower share the cores,
and a thread that spins for another one without a core delays both. numpy's BLAS, which nothing here uses, would start
threads at its import, and a process with several threads is not to be forked."""
logger = logging.getLogger(__name__)


class _ForkServer(NamedTuple):
    link: ForkLink
    child: Child


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
        self._fork_servers: dict[str, _ForkServer] = {}
        """By role: the one started last."""

    def close(self) -> None:
        """Call when all processes have ended."""
        for server in self._fork_servers.values():
            server.link.close()

    def __call__(self, member: Member, incarnation: int) -> Child:
        """Raises OSError if there are no descriptors, processes or memory for it."""
        role = member.role
        with ExitStack() as for_child, ExitStack() as on_error:
            report_fd, report_write_fd = os.pipe2(os.O_CLOEXEC)
            # Only the child keeps this end, so that its exit gives end of file.
            for_child.callback(os.close, report_write_fd)
            on_error.callback(os.close, report_fd)
            os.set_blocking(report_fd, False)
            fds: dict[Descriptor, int] = {"report_fd": report_write_fd}
            if role.engine:
                fds["rendezvous_fd"] = self._inherited.rendezvous.fd(incarnation)
            if role.listens:
                fds["listen_fd"] = self._inherited.listen_fds[role.listens]
            link = on_error.enter_context(closing(ForkLink())) if role.preloads else None
            if link is not None:
                fds["fork_link_fd"] = for_child.enter_context(link.theirs).fileno()
            child = self._forked(member, report_fd, fds) or self._executed(member, report_fd, fds)
            on_error.pop_all()
        if link is not None:
            self._serves(role, link, child)
        return child

    def _forked(self, member: Member, report_fd: int, fds: dict[Descriptor, int]) -> Child | None:
        """None if its fork server does not serve now."""
        role = member.role
        if (server := self._fork_servers.get(role.forked_by)) is None:
            return None
        request = ForkRequest(
            role=role.name,
            index=member.index,
            title=member.title,
            target=role.target,
            fds=tuple(fds),
            preloads=role.preloads,
        )
        try:
            forked = server.link.fork(request, tuple(fds.values()))
        except TimeoutError as error:
            logger.error("%s; it is killed, and %s is started without it", error, member.title)
            server.child.send_signal(signal.SIGKILL)
            return None
        return None if forked is None else Child(member, *forked, report_fd)

    def _executed(self, member: Member, report_fd: int, fds: dict[Descriptor, int]) -> Child:
        spec = ChildSpec(
            deployment=self._deployment,
            role=member.role.name,
            index=member.index,
            title=member.title,
            target=member.role.target,
            supervisor_pid=os.getpid(),
            parent_death_fd=self._inherited.parent_death_fd,
            arena_fd=self._inherited.arena_fd,
            preloads=member.role.preloads,
            **fds,
        )
        return _execute(member, spec, report_fd)

    def _serves(self, role: Role, link: ForkLink, child: Child) -> None:
        if (before := self._fork_servers.get(role.name)) is not None:
            before.link.close()
        self._fork_servers[role.name] = _ForkServer(link, child)


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
