"""Two replicas without servers on a Ray that is started here. One is suspended while requests are to go there.

    python -m tests.ray.reservations

Says which replica each of the requests got, and then how many Ray counts at both, once the suspended one goes on; and,
when one is killed, what a front hears of the one that takes its place. Ray reads its variables when it is imported, so
this is a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from typing import Any

from mmserve.cluster.on_ray.environment import set_for_own_ray

set_for_own_ray()

import ray  # noqa: E402 - reads the environment
from ray import serve  # noqa: E402
from ray.exceptions import RayError  # noqa: E402
from ray.serve.config import RequestRouterConfig  # noqa: E402
from ray.serve.exceptions import RayServeException, RequestCancelledError  # noqa: E402

from mmserve.cluster.front.metrics import FrontMetrics  # noqa: E402
from mmserve.cluster.on_ray.front import NODE, NODES_APP, nodes_are_starting  # noqa: E402
from mmserve.cluster.on_ray.held import Held  # noqa: E402
from mmserve.cluster.on_ray.known import known  # noqa: E402
from mmserve.cluster.on_ray.placement import RayPlacement  # noqa: E402
from mmserve.cluster.on_ray.router import PictureRouter  # noqa: E402
from mmserve.cluster.scale.policy import Want  # noqa: E402
from mmserve.cluster.scale.reports import Holdings, Load  # noqa: E402
from tests.fakes.pictures.cache import until  # noqa: E402

_WANT = Want(pictures=(7,), tokens=10)
_REQUESTS = 8


class Bare:
    """What ``on_ray.node.Node`` is for Ray."""

    def __init__(self) -> None:
        self._held = Held()

    def record_replica_metadata(self) -> dict[str, str]:
        return {"id": str(os.getpid()), "url": "http://127.0.0.1:1", "reports": ""}

    async def hold(self, **request: Any) -> None:
        await self._held.until_over(time.monotonic())


def _counts() -> list[int]:
    """Requests at each replica, as it counts them."""
    names = [each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if f"#{NODE}#" in each["name"]]
    actors = [ray.get_actor(name, namespace="serve") for name in names]
    return [ray.get(each.get_num_ongoing_requests.remote(), timeout=20) for each in actors]


async def _suspended(placement: RayPlacement) -> list[str]:
    """Who got the requests, of which each holds its place until all have one."""
    all_placed = asyncio.Barrier(_REQUESTS)

    async def placed() -> str:
        async with placement.reserved(_WANT, ()) as (replica, _):
            await all_placed.wait()
            return replica

    return await asyncio.gather(*(placed() for _ in range(_REQUESTS)))


async def _test(handle: Any) -> None:
    metrics = FrontMetrics()
    ends = (RayError, RayServeException, RequestCancelledError)
    placement = RayPlacement(handle, known, metrics, ends, nodes_are_starting)
    async with placement.reserved(_WANT, ()) as (victim, _):
        pass  # Ray's router runs now, knows both, and relies for 10 s on what this one has told it
    for each in known.cluster.replicas:
        known.load(each, Load(encode_s=9.0), time.monotonic())
    known.hold(victim, Holdings("pictures", 0, 0, (7,), snapshot=True))
    os.kill(int(victim), signal.SIGSTOP)
    started_s = time.monotonic()
    try:
        async with asyncio.timeout(25):  # Ray itself notices after 30 s
            replicas = await _suspended(placement)
    finally:
        os.kill(int(victim), signal.SIGCONT)
    print("placed elsewhere:", sum(each != victim for each in replicas), f"after {time.monotonic() - started_s:.1f} s")
    print("silent:", metrics.value("failed_attempts", victim))
    await asyncio.to_thread(until, lambda: _counts() == [0, 0], timeout_s=30)
    print("left:", sum(_counts()), flush=True)
    print("others:", await placement.has_others(known.ids()))
    os.kill(int(victim), signal.SIGKILL)
    await asyncio.to_thread(until, lambda: victim not in known.ids(), timeout_s=30)
    print("others after a kill:", await placement.has_others(known.ids()))
    await asyncio.to_thread(until, lambda: len(known.ids()) == 2, timeout_s=60)
    await asyncio.to_thread(until, lambda: not asyncio.run(nodes_are_starting()), timeout_s=30)
    print("others at last:", await placement.has_others(known.ids()), flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as directory:
        ray.init(
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=80_000_000,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=directory,
        )
        try:
            serve.start(proxy_location="Disabled")
            router = RequestRouterConfig(request_router_class=PictureRouter)
            options: dict[str, Any] = {
                "num_replicas": 2,
                "max_ongoing_requests": 64,
                "ray_actor_options": {"num_cpus": 0},
            }
            bare = serve.deployment(Bare, name=NODE, request_router_config=router, **options)
            asyncio.run(_test(serve.run(bare.bind(), name=NODES_APP, route_prefix=None)))
        finally:
            serve.shutdown()
            ray.shutdown()


if __name__ == "__main__":
    main()
