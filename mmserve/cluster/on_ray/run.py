"""``mmserve serve --replicas N``: a Ray of this machine, or a cluster, with N servers and a front."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from mmserve.cluster.on_ray.apps import FRONT, front_app, nodes_app
from mmserve.cluster.on_ray.front import NODES_APP
from mmserve.cluster.on_ray.gpus import gpus_of_each
from mmserve.config.fields import Device
from mmserve.ipc.links.cluster_key import new_secret
from mmserve.runtime.errors import StartupError

FRONT_APP = "front"
POLICY = "mmserve.cluster.on_ray.autoscaling:policy"
_TIMES = {"metrics_interval_s": 2.0, "look_back_period_s": 4.0, "upscale_delay_s": 4.0, "downscale_delay_s": 60.0}
"""A server takes seconds to start, so a moment's load starts none, and a pause ends none."""
_OBJECT_STORE_NBYTES = 80 << 20
"""The least that Ray takes. Nothing is kept in it."""


def serve_replicas(
    count: tuple[int, int],
    options: Sequence[str],
    environment: Mapping[str, str],
    front: Mapping[str, Any],
    *,
    port: int,
    address: str | None,
    device: Device,
    tp: int,
) -> int:
    """Serve until SIGTERM or SIGINT. ``count``: the fewest and the most servers. ``options``: of each one.
    ``front``: fields of FrontOptions. ``address``: of Ray; None: start one here. ``device`` and ``tp``: as in
    ``options``."""
    stop = _Stop()
    with tempfile.TemporaryDirectory(prefix="mmserve-ray-") as directory, contextlib.ExitStack() as stack:
        stack.callback(ray.shutdown)
        with contextlib.suppress(_Stopped), stop.at_once():
            _start_ray(address, directory)
            gpus = gpus_of_each(device, tp, max(1, count[0]), _gpus_of_machines())
            stop.listen()  # after Ray, whose own handlers end this process while it starts
            serve.start(proxy_location="Disabled")
            stack.callback(_end_serve, own=address is None)
            host = "127.0.0.1" if address is None else ""  # one machine: nobody else need reach the servers
            _deploy(count, options, environment, host, front, port, gpus)
            stop.wait()
    return 0


def _gpus_of_machines() -> list[float]:
    return [each["Resources"].get("GPU", 0.0) for each in ray.nodes() if each["Alive"]]


def _end_serve(*, own: bool) -> None:
    serve.delete(FRONT_APP)
    serve.delete(NODES_APP)
    if own:
        serve.shutdown()


class _Stopped(BaseException):
    """Ends what a signal must not wait for."""


class _Stop:
    """Set by the first signal."""

    def __init__(self) -> None:
        self._set = threading.Event()
        self._at_once = False

    def listen(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._set.set()
        if self._at_once:
            self._at_once = False
            raise _Stopped

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it, a signal raises _Stopped: Ray waits for its deployments, however long they take."""
        self._at_once = True
        try:
            yield
        finally:
            self._at_once = False

    def wait(self) -> None:
        self._set.wait()


def _deploy(
    count: tuple[int, int],
    options: Sequence[str],
    environment: Mapping[str, str],
    host: str,
    front: Mapping[str, Any],
    port: int,
    gpus: int,
) -> None:
    secret = new_secret().hex()
    deployment = {**_scale(*count), "ray_actor_options": {"num_cpus": 0, "num_gpus": gpus}}
    try:
        serve.run(nodes_app(options, secret, environment, host, **deployment), name=NODES_APP, route_prefix=None)
        serve.run(front_app(port, secret, front), name=FRONT_APP, route_prefix=None)
    except RuntimeError as error:
        raise StartupError(f"the replicas did not start: {error}") from None
    bound = serve.get_deployment_handle(FRONT, FRONT_APP).port.remote().result()
    print(f"mmserve is ready: http://{front['host']}:{bound}, {_written(*count)} replicas", flush=True)


def _scale(least: int, most: int) -> dict[str, Any]:
    """Options of the deployment."""
    if least == most:
        return {"num_replicas": most}
    policy = AutoscalingPolicy(policy_function=POLICY)
    limits = {"min_replicas": least, "initial_replicas": max(1, least), "max_replicas": most}
    return {"autoscaling_config": AutoscalingConfig(**limits, **_TIMES, policy=policy)}


def _written(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"


def _start_ray(address: str | None, directory: str) -> None:
    if address is not None:
        ray.init(address=address, log_to_driver=False)
        return
    local: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "_temp_dir": directory}
    local["object_store_memory"] = _OBJECT_STORE_NBYTES
    ray.init(log_to_driver=True, **local)
