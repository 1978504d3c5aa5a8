"""Two servers and two fronts on the Ray of this machine's cluster, one of each on each node but the head.

python -m benchmarks.nodes.ray_deploy PORT OPTION...
"""

from __future__ import annotations

import secrets
import sys

import ray
from ray import serve

from mmserve.cluster.on_ray import apps
from mmserve.cluster.on_ray.front import NODES_APP
from mmserve.cluster.on_ray.run import FRONT_APP

RESOURCE = "servers"
"""Of nodes but the head."""


def main() -> None:
    port, options = int(sys.argv[1]), sys.argv[2:]
    ray.init(address="auto", log_to_driver=False)
    serve.start(proxy_location="Disabled")
    secret = secrets.token_hex(32)
    apart = {
        "num_replicas": 2,
        "max_replicas_per_node": 1,
        "ray_actor_options": {"num_cpus": 0, "resources": {RESOURCE: 1}},
    }
    serve.run(apps.nodes_app(options, secret, {}, "", **apart), name=NODES_APP, route_prefix=None)
    front = apps.front_app(port, secret, {"host": "0.0.0.0", "allowed_hosts": ("*",)}, **apart)
    serve.run(front, name=FRONT_APP, route_prefix=None)


if __name__ == "__main__":
    main()
