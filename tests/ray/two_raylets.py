"""Two machines of a Ray cluster on this one (Ray's utility for tests), with a server each, and a front at the first.

    python -m tests.ray.two_raylets PORT OPTION...

Says ``ready`` and the pid of the second one's raylet. On stdin: ``kill`` kills that (SIGKILL), ``add`` starts another
machine. Ends with stdin. Ray reads its variables when it is imported, so this is a process of its own.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator, Sequence

import ray
from ray import serve
from ray.cluster_utils import Cluster

from mmserve.cluster.on_ray import apps
from mmserve.cluster.on_ray.front import NODES_APP
from mmserve.cluster.on_ray.run import FRONT_APP

_SERVER, _FRONT = "a_server", "a_front"
"""Resources: a machine has room for one server."""
_MACHINE = {"num_cpus": 1, "object_store_memory": 80_000_000}


@contextlib.contextmanager
def _cluster() -> Iterator[Cluster]:
    first = {**_MACHINE, "include_dashboard": False, "resources": {_SERVER: 1, _FRONT: 1}}
    cluster = Cluster(initialize_head=True, head_node_args=first)
    try:
        yield cluster
    finally:
        cluster.shutdown()


def _deploy(port: int, options: Sequence[str]) -> None:
    serve.start(proxy_location="Disabled")
    secret = secrets.token_hex(32)
    servers = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0, "resources": {_SERVER: 1}}}
    serve.run(apps.nodes_app(options, secret, {}, "127.0.0.1", **servers), name=NODES_APP, route_prefix=None)
    at_first = {"ray_actor_options": {"num_cpus": 0, "resources": {_FRONT: 1}}}
    serve.run(apps.front_app(port, secret, {"host": "127.0.0.1"}, **at_first), name=FRONT_APP, route_prefix=None)


def main() -> None:
    with _cluster() as cluster:
        second = cluster.add_node(**_MACHINE, resources={_SERVER: 1})
        ray.init(address=cluster.address, log_to_driver=False)
        try:
            _deploy(int(sys.argv[1]), sys.argv[2:])
            (raylet,) = second.all_processes["raylet"]
            print("ready", raylet.process.pid, flush=True)
            for line in sys.stdin:
                if line.strip() == "kill":
                    second.kill_raylet()
                else:
                    cluster.add_node(**_MACHINE, resources={_SERVER: 1})
        finally:
            serve.shutdown()
            ray.shutdown()


if __name__ == "__main__":
    main()
