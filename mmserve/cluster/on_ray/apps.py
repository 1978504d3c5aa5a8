"""The two applications of Ray Serve, for ``serve deploy`` and for ``mmserve serve --replicas``.

Two, because a new version of one restarts all deployments of its application: a new front must not restart servers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from mmserve.cluster.on_ray.front import NODE, FrontDeployment
from mmserve.cluster.on_ray.node import Node
from mmserve.cluster.on_ray.router import PictureRouter
from mmserve.ipc.links import cluster_key

FRONT = "Front"
_LONGEST_ANSWER_S = 600.0
_MAX_REQUESTS = 1024
"""Of one replica; the server itself refuses those that it has no room for."""

_node = serve.deployment(
    Node,
    name=NODE,
    max_ongoing_requests=_MAX_REQUESTS,
    graceful_shutdown_timeout_s=_LONGEST_ANSWER_S,
    graceful_shutdown_wait_loop_s=0.5,
    health_check_period_s=1,
    ray_actor_options={"num_cpus": 0},
    request_router_config=RequestRouterConfig(request_router_class=PictureRouter),
)
_front = serve.deployment(
    FrontDeployment,
    name=FRONT,
    graceful_shutdown_timeout_s=_LONGEST_ANSWER_S,
    graceful_shutdown_wait_loop_s=0.5,
    health_check_period_s=1,
    ray_actor_options={"num_cpus": 0},
)


def nodes(args: Mapping[str, Any]) -> Application:
    """``options``: arguments of ``mmserve serve``; ``cluster_key_file``: on the machine that builds the application;
    the rest is of the deployment (``num_replicas``, ``ray_actor_options`` with ``num_gpus``, ...)."""
    rest = {name: value for name, value in args.items() if name not in ("options", "cluster_key_file")}
    return nodes_app(args.get("options", ()), _secret(args), {}, "", **rest)


def nodes_app(
    options: Sequence[str], secret: str, environment: Mapping[str, str], host: str, **deployment: Any
) -> Application:
    """See ``node.Node``. ``deployment``: options of Ray's deployment."""
    made = _node.options(**deployment) if deployment else _node
    return made.bind(list(options), secret, dict(environment), host)


def front(args: Mapping[str, Any]) -> Application:
    """``port``, ``cluster_key_file``, and fields of FrontOptions; a front that ends may take as long as a server."""
    rest = {name: value for name, value in args.items() if name not in ("port", "cluster_key_file")}
    options = {"shutdown_timeout_s": _LONGEST_ANSWER_S, **rest}
    return front_app(int(args.get("port", 8000)), _secret(args), options)


def front_app(port: int, secret: str, options: Mapping[str, Any], **deployment: Any) -> Application:
    """See ``front.FrontDeployment``. ``deployment``: options of Ray's deployment."""
    made = _front.options(**deployment) if deployment else _front
    return made.bind(port, secret, dict(options))


def _secret(args: Mapping[str, Any]) -> str:
    return cluster_key.read(Path(args["cluster_key_file"])).secret.hex()
