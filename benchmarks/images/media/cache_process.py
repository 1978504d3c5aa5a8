"""The real cache server in a process of its own, started by the supervisor's code."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.ipc.arena import Arena
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.supervisor.child.process import Child
from mmserve.supervisor.child.rendezvous import Rendezvous
from mmserve.supervisor.child.spawn import InheritedFds, Spawner
from mmserve.supervisor.inherited import arena_of
from mmserve.supervisor.startup import machine, plan
from mmserve.supervisor.startup.find_model import find_model
from mmserve.supervisor.startup.run_directory import run_directory
from mmserve.supervisor.topology import members, topology

_READY_S = 30.0
_STOP_S = 10.0


@dataclass(frozen=True)
class CacheProcess:
    """What a process of the same server is given to reach it."""

    deployment: Deployment
    arena: Arena

    @property
    def endpoints(self) -> Endpoints:
        return Endpoints(self.deployment.run_dir)

    def client(self, owner: str, *, batched: bool = True) -> MediaCacheClient:
        """Speaks v2 (``batched``) or v1."""
        return connect(self.endpoints, owner, batched=batched)


@contextlib.contextmanager
def cache_process(config: Config) -> Iterator[CacheProcess]:
    """Ready when yielded. Raises RuntimeError when it does not start."""
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(run_directory())
        deployment = plan.make(config, find_model(config), machine.look(), run_dir=str(run_dir), url="")
        arena = stack.enter_context(arena_of(deployment.arena_nbytes))
        arena.map_all()
        child = stack.enter_context(_started(deployment, arena))
        _await_ready(child)
        yield CacheProcess(deployment, arena)


@contextlib.contextmanager
def _started(deployment: Deployment, arena: Arena) -> Iterator[Child]:
    (member,) = [member for member in members(topology(deployment)) if member.role.name == "cache_server"]
    parent_death_fd, ours = os.pipe2(os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        child = Spawner(deployment, InheritedFds(parent_death_fd, arena.fd, Rendezvous(), {}))(member, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        if not child.wait(_STOP_S):
            child.send_signal(signal.SIGKILL)
            child.wait(_STOP_S)
        child.close()
        os.close(parent_death_fd)
        os.close(ours)


def _await_ready(child: Child) -> None:
    while child.ready is None:
        readable, _, _ = select.select([child.report_fd], [], [], _READY_S)
        for _ in child.reports():
            pass
        if not readable or child.reports_closed:
            child.wait(1.0)
            raise RuntimeError(f"the cache server did not start: it {child.cause}")
