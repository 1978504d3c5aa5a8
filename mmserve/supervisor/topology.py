"""The table of processes: count, entry point, start order, and restart group of each role.

Entry points are "module:function" strings, so that the supervisor imports no server package.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.gpu_memory import shares_cards
from mmserve.runtime.byte_budget import MIB

Listens = Literal["", "http", "health"]
Epoch = Literal["", "engine", "visual", "cache"]
ForkServer = Literal["", "fork_server", "torch_fork_server"]
_WITHOUT_TORCH = (
    "mmserve.monitoring.metrics.run",
    "mmserve.monitoring.health.run",
    "mmserve.cache_server.run",
    "mmserve.router.run",
)
"""Modules of the small processes. An HTTP worker imports its other modules itself, so that these need not wait."""


@dataclass(frozen=True)
class Role:
    """One row: ``count`` processes of one kind."""

    name: str
    target: str
    """module:function, called with a Process."""
    count: int = 1
    first: int = 0
    """Index of the first of its processes on this machine."""
    after: tuple[str, ...] = ()
    """Roles that must be ready before this one starts, besides the fork server."""
    engine: bool = False
    """True for the router, the ranks and links between nodes, which restart together; others restart alone."""
    epoch: Epoch = ""
    """The epoch of ServerPhase that rises when the role is ready again after a restart; one each for visual servers."""
    listens: Listens = ""
    """The socket it inherits."""
    numbered: Literal["", "worker", "rank"] = ""
    """How its processes are numbered in titles; "" for a role with one process."""
    forked_by: ForkServer = ""
    """The fork server that becomes this process, where it runs; it has imported what this process needs."""
    preloads: tuple[str, ...] = ()
    """Of a fork server: the modules that it imports. It has no ``target``."""

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Names of all roles that must be ready before this one starts: the fork server, and those of ``after``."""
        return (*((self.forked_by,) if self.forked_by else ()), *self.after)


@dataclass(frozen=True)
class Member:
    """One process of a role."""

    role: Role
    index: int

    @property
    def title(self) -> str:
        """As shown in ps, logs and errors: ``router``, ``model_backend rank 1``, ``httpserver 0``."""
        match self.role.numbered:
            case "rank":
                return f"{self.role.name} rank {self.index}"
            case "worker":
                return f"{self.role.name} {self.index}"
        return self.role.name

    @property
    def name(self) -> str:
        """As in heartbeats, metrics and leases."""
        return f"{self.role.name}-{self.index}"

    @property
    def group(self) -> str:
        """Processes of one group restart together."""
        return "engine" if self.role.engine else self.title


Topology = Sequence[Role]
"""In start order; processes stop in reverse order."""


def topology(deployment: Deployment) -> Topology:
    """The processes of this machine. A text model needs no visual server; nodes but the first have ranks alone, and
    ``mmserve encoder`` has an encoder alone."""
    config = deployment.config
    if config.join is not None:
        return [Role("encoder", "mmserve.visualserver.encoder.run:run")]
    if config.node_rank:
        node = Role("node", "mmserve.cluster.nodes.run:run_node", engine=True)
        return [_torch_fork_server(deployment), node, _ranks(deployment)]
    roles = [
        Role("fork_server", "", preloads=_WITHOUT_TORCH),
        _torch_fork_server(deployment),
        Role("metrics", "mmserve.monitoring.metrics.run:run", forked_by="fork_server"),
        Role("health", "mmserve.monitoring.health.run:run", forked_by="fork_server", listens="health"),
        Role("cache_server", "mmserve.cache_server.run:run", forked_by="fork_server", epoch="cache"),
        *(
            [Role("nodes", "mmserve.cluster.nodes.run:run_head", forked_by="fork_server", engine=True, epoch="engine")]
            if config.nnodes > 1
            else []
        ),
        _ranks(deployment),
        Role("router", "mmserve.router.run:run", forked_by="fork_server", engine=True, epoch="engine"),
        Role(
            "visualserver",
            "mmserve.visualserver.run:run",
            count=config.visual_workers,
            after=("cache_server",),
            forked_by="torch_fork_server",
            epoch="visual",
            numbered="worker",
        ),
        Role(
            "httpserver",
            "mmserve.httpserver.run:run",
            count=config.http_workers,
            after=("cache_server",),
            forked_by="fork_server",
            listens="http",
            numbered="worker",
        ),
    ]
    return [role for role in roles if role.name != "visualserver" or deployment.model.vision is not None]


def _ranks(deployment: Deployment) -> Role:
    here, config = deployment.ranks_here, deployment.config
    with_pictures = deployment.device == "cuda" and deployment.model.vision is not None and not config.node_rank
    # The KV cache takes what is left of a card once the pictures' part is taken.
    waits = with_pictures and shares_cards(config.visual_devices, len(here))
    return Role(
        "model_backend",
        "mmserve.model_backend.run:run",
        count=len(here),
        after=("visualserver",) if waits else (),
        first=here.start,
        forked_by="torch_fork_server",
        engine=True,
        epoch="engine",
        numbered="rank",
    )


def _torch_fork_server(deployment: Deployment) -> Role:
    preloads = ["mmserve.model_backend.run"]
    if deployment.model.vision is not None and not deployment.config.node_rank:
        preloads.append("mmserve.visualserver.run")
    if deployment.model.family == "transformers":
        preloads.append("mmserve.model_backend.models.generic.load")
    return Role("torch_fork_server", "", forked_by="fork_server", preloads=tuple(preloads))


def members(roles: Topology) -> list[Member]:
    """Every process, in start order."""
    return [Member(role, role.first + index) for role in roles for index in range(role.count)]


def render(roles: Topology, deployment: Deployment) -> str:
    """The table as text, for the terminal."""
    lines = [
        f"mmserve {deployment.version}: {deployment.served_name} ({deployment.model.path}) "
        f"on {deployment.device}, {deployment.dtype}"
    ]
    for role in roles:
        restarts = "with the engine" if role.engine else "alone"
        after = f", after {' and '.join(role.after)}" if role.after else ""
        what = role.target or f"becomes {', '.join(other.name for other in roles if other.forked_by == role.name)}"
        lines.append(f"  {role.count} x {role.name:<17} {what:<32} restarts {restarts}{after}")
    if any(role.listens == "http" for role in roles):
        lines.append(f"  at most {_budgets(deployment)}")
    return "\n".join(lines)


def _budgets(deployment: Deployment) -> str:
    """The byte budgets, in words."""
    budgets, workers = deployment.budgets, deployment.config.http_workers
    limits = {"in request bodies (besides short ones)": budgets.body_nbytes * workers}
    if deployment.model.vision is not None:
        limits |= {
            "in fetched images": budgets.fetch_nbytes * workers,
            "in compressed images": budgets.data_nbytes,
            "in decoded pixels": budgets.pixel_nbytes,
            "in embeddings": budgets.embed_nbytes,
        }
    return ", ".join(f"{nbytes / MIB:.0f} MiB {form}" for form, nbytes in limits.items())
