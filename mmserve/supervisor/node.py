"""A machine with ranks alone, of a server whose ranks are on several, or with an encoder alone: no HTTP, no router, no
arena."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import setproctitle

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.ipc.links import cluster_key
from mmserve.supervisor.child.process import Child
from mmserve.supervisor.child.rendezvous import Rendezvous
from mmserve.supervisor.child.spawn import InheritedFds, Spawner
from mmserve.supervisor.inherited import arena_of, parent_death_pipe
from mmserve.supervisor.progress import say
from mmserve.supervisor.startup import machine, plan
from mmserve.supervisor.startup.find_draft import find_draft
from mmserve.supervisor.startup.image_limit import limit_images
from mmserve.supervisor.startup.kernel_build import building
from mmserve.supervisor.startup.run_directory import run_directory
from mmserve.supervisor.status_publisher import NoStatus
from mmserve.supervisor.supervisor import Supervisor
from mmserve.supervisor.topology import render, topology
from mmserve.supervisor.watching.watch import Watch

logger = logging.getLogger(__name__)


def supervise_node(stack: ExitStack, config: Config, find: Callable[[Config], ModelSpec]) -> None:
    """Run this machine's ranks or its encoder until a signal. Ranks restart with those of the other nodes. Raises
    StartupError."""
    assert config.cluster_key_file is not None
    cluster_key.read(Path(config.cluster_key_file))
    title = f"node {config.node_rank} of {config.nnodes}" if config.join is None else f"encoder for {config.join}"
    setproctitle.setproctitle(f"mmserve: supervisor ({config.model}, {title})")
    deployment = _plan(config, find(config), str(stack.enter_context(run_directory())))
    stack.enter_context(building(deployment))
    table = topology(deployment)
    say(render(table, deployment), sys.stdout)
    inherited = InheritedFds(
        parent_death_fd=stack.enter_context(parent_death_pipe()),
        arena_fd=stack.enter_context(arena_of(deployment.arena_nbytes, when_used=True)).fd,
        rendezvous=stack.enter_context(closing(Rendezvous())),
        listen_fds={},
    )
    watch = stack.enter_context(Watch())

    def on_ready(children: list[Child]) -> None:
        here = deployment.ranks_here
        ranks = "" if config.join is not None else f", ranks {here.start} to {here.stop - 1}, head {config.head}"
        say(f"mmserve is ready: {title}{ranks}", sys.stdout)

    spawner = stack.enter_context(closing(Spawner(deployment, inherited)))
    Supervisor(deployment, table, spawner, watch, NoStatus()).run(on_ready)


def _plan(config: Config, model: ModelSpec, run_dir: str) -> Deployment:
    found = machine.look()
    model, max_image_rows = limit_images(config, model, found)
    return plan.make(
        config, model, found, run_dir=run_dir, url="", max_image_rows=max_image_rows, draft=find_draft(config, model)
    )
