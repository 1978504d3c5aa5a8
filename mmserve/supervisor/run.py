"""``serve(config)``: acquires ports, run directory and arena, runs the supervisor, and releases everything."""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from operator import itemgetter
from pathlib import Path
from types import FrameType
from typing import NoReturn

import setproctitle
from msgspec.structs import replace

from mmserve.checkpoint.spec import ModelSpec
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.facts import text_facts_of
from mmserve.ipc.links import cluster_key
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.runtime.logs import log
from mmserve.supervisor.child.process import Child
from mmserve.supervisor.child.rendezvous import Rendezvous
from mmserve.supervisor.child.spawn import InheritedFds, Spawner
from mmserve.supervisor.inherited import arena_of, parent_death_pipe
from mmserve.supervisor.node import supervise_node
from mmserve.supervisor.progress import say
from mmserve.supervisor.startup import machine, plan
from mmserve.supervisor.startup.find_draft import find_draft
from mmserve.supervisor.startup.find_model import find_model
from mmserve.supervisor.startup.image_limit import limit_images
from mmserve.supervisor.startup.kernel_build import building
from mmserve.supervisor.startup.listen import listen, url_of
from mmserve.supervisor.startup.run_directory import run_directory
from mmserve.supervisor.status_publisher import StatusPublisher
from mmserve.supervisor.supervisor import Interrupted, Supervisor
from mmserve.supervisor.topology import Topology, render, topology
from mmserve.supervisor.watching.orphans import adopt_orphans
from mmserve.supervisor.watching.watch import Watch

logger = logging.getLogger(__name__)


def serve(
    config: Config,
    *,
    find: Callable[[Config], ModelSpec] = find_model,
    roles: Callable[[Deployment], Topology] = topology,
) -> int:
    """Run one server until a signal ends it. Returns the exit code. Raises StartupError. Leaves nothing behind."""
    started_s = time.monotonic()
    machine.open_standard_descriptors()
    log.setup("supervisor", config.log_level, config.log_format)
    machine.allow_descriptors()
    adopt_orphans()
    setproctitle.setproctitle(f"mmserve: supervisor ({config.model})")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with ExitStack() as stack:
            if config.node_rank or config.join is not None:
                supervise_node(stack, config, find)
            else:
                _supervise(stack, config, find, roles, started_s)
    except Interrupted as interrupted:
        return 128 + interrupted.signum
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(signum)


def _supervise(
    stack: ExitStack,
    config: Config,
    find: Callable[[Config], ModelSpec],
    roles: Callable[[Deployment], Topology],
    started_s: float,
) -> None:
    key = None if config.cluster_key_file is None else make_key(Path(config.cluster_key_file))
    http = stack.enter_context(listen(config.host, config.port, "--port"))
    health = stack.enter_context(listen(config.host, config.health_port, "--health-port"))
    setproctitle.setproctitle(f"mmserve: supervisor ({config.model} on {url_of(http)})")
    model = find(config)
    run_dir = stack.enter_context(run_directory())
    Endpoints(run_dir).health_url.write_text(url_of(health))  # run_directory has made sure that there is room
    found = machine.look()
    model, max_image_rows = limit_images(config, model, found)
    deployment = plan.make(
        config,
        model,
        found,
        run_dir=str(run_dir),
        url=url_of(http),
        max_image_rows=max_image_rows,
        draft=find_draft(config, model),
        shared_seed=None if key is None else key.hash_seed,
    )
    if key is not None:
        deployment = replace(deployment, text_facts=text_facts_of(deployment))
    if model.vision is not None and not deployment.arena_nbytes:
        logger.warning("--mm-cache-gb 0: there is no room for any image, requests with images will be refused (413)")
    if config.fault_injection:
        logger.warning("--fault-injection: drills of this user can break this server's processes; not for production")
    stack.enter_context(building(deployment))
    table = roles(deployment)
    say(render(table, deployment), sys.stdout)
    rendezvous = stack.enter_context(closing(Rendezvous()))
    inherited = InheritedFds(
        parent_death_fd=stack.enter_context(parent_death_pipe()),
        arena_fd=stack.enter_context(
            arena_of(deployment.arena_nbytes, huge_pages=config.arena_huge_pages, when_used=not config.prefault)
        ).fd,
        rendezvous=rendezvous,
        listen_fds={"http": http.fileno(), "health": health.fileno()},
    )
    num_visual_servers = sum(role.count for role in table if role.name == "visualserver")
    publisher = StatusPublisher(Endpoints(run_dir), num_visual_servers)
    stack.callback(publisher.close)
    watch = stack.enter_context(Watch())
    spawner = stack.enter_context(closing(Spawner(deployment, inherited)))
    supervisor = Supervisor(deployment, table, spawner, watch, publisher)

    def on_ready(children: list[Child]) -> None:
        logger.info("%s", _start_table(children, started_s))
        _print_ready(deployment, children, time.monotonic() - started_s, url_of(health))

    supervisor.run(on_ready)


def make_key(path: Path) -> cluster_key.ClusterKey:
    """Read the secret shared with other machines, made here if it is missing. Raises StartupError."""
    if cluster_key.make_if_missing(path):
        logger.info("made the secret %s; other machines need a copy (--cluster-key-file)", path)
    return cluster_key.read(path)


def _start_table(children: list[Child], started_s: float) -> str:
    """When each process was started and ready, as a table. A rank logs the parts of its own start."""
    first_s = min(child.started_s for child in children)
    spans = [("supervisor", started_s, first_s)]
    spans += sorted(((child.member.title, child.started_s, child.ready_s) for child in children), key=itemgetter(2))
    rows = (f"  {title:<22} {began - started_s:6.2f} to {ready - started_s:6.2f}" for title, began, ready in spans)
    return "\n".join(["from being started to being ready, in seconds since the supervisor began:", *rows])


def _print_ready(deployment: Deployment, children: list[Child], took_s: float, health_url: str) -> None:
    reports = [child.ready for child in children if child.ready is not None]
    # Only the ranks and the router know the size in whole blocks.
    counted = [tokens for report in reports if isinstance(tokens := report.details.get("kv_tokens"), int)]
    kv_tokens = min(counted, default=deployment.kv_tokens or 0)
    facts = {
        "": deployment.url,
        "model": deployment.served_name,
        "device": deployment.device,
        "dtype": deployment.dtype,
        "KV cache": f"{kv_tokens} tokens in {deployment.kv_dtype}",
        "arena": f"{deployment.arena_nbytes / plan.GIB:.2f} GiB",
        "started in": f"{took_s:.1f} s",
        "health": f"{health_url}/health",
    }
    line = ", ".join(f"{name} {fact}".strip() for name, fact in facts.items())
    say(f"mmserve is ready: {line}", sys.stdout)
    if deployment.config.web_ui:
        say(f"open {deployment.url}/ in a browser, or use {deployment.url}/v1 with a client", sys.stdout)
