"""A front as a deployment: it listens itself, and asks Ray only where a request goes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException, RequestCancelledError

from mmserve.cluster.front.replicas import Replica
from mmserve.cluster.front.reports import ReportListener
from mmserve.cluster.front.run import Front, FrontOptions
from mmserve.cluster.front.server_facts import ServerFacts
from mmserve.cluster.front.silence import SilenceWatch
from mmserve.cluster.on_ray import shared_port
from mmserve.cluster.on_ray.known import known
from mmserve.cluster.on_ray.placement import RayPlacement
from mmserve.ipc.links.cluster_key import ClusterKey

NODES_APP, NODE = "nodes", "Node"
_ENDS = (RayError, RayServeException, RequestCancelledError)
_STATUS_S = 5.0
_INCOMPLETE = ("UPDATING", "UPSCALING", "UNHEALTHY")
"""Ray's words for a deployment that has not all of its replicas."""


async def nodes_are_starting() -> bool:
    """True if there are fewer replicas than Ray wants, or if Ray does not say."""
    try:
        async with asyncio.timeout(_STATUS_S):
            app = (await asyncio.to_thread(serve.status)).applications.get(NODES_APP)
    except (TimeoutError, *_ENDS):
        return True
    node = None if app is None else app.deployments.get(NODE)
    return node is not None and node.status in _INCOMPLETE


class FrontDeployment:
    """``options``: fields of FrontOptions; ``secret``: of the cluster key, in hex; ``port``: 0 for any."""

    async def __init__(self, port: int, secret: str, options: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        self._options = FrontOptions(ClusterKey.of(bytes.fromhex(secret)), **options)
        front = Front(self._options)
        self._metrics = front.metrics
        handle = serve.get_deployment_handle(NODE, NODES_APP)
        front.placement = RayPlacement(handle, known, front.metrics, _ENDS, nodes_are_starting)
        facts = ServerFacts(partial(front.metrics.add, "kinds_of_replicas"))
        self._silence = SilenceWatch(known.mute, front.placement.upstream)
        self._listener = ReportListener(known, self._options.key, facts, self._silence.heard)
        loop = asyncio.get_running_loop()

        def on_change(replicas: Sequence[Replica]) -> None:
            loop.call_soon_threadsafe(self._listen, replicas)

        known.watch(on_change)
        self._socket = shared_port.listening(self._options.host, port)
        self._port = self._socket.getsockname()[1]
        started = asyncio.Event()
        self._server = front.server(started.set)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        await started.wait()

    def port(self) -> int:
        """Where it listens."""
        return int(self._port)

    async def check_health(self) -> None:
        """Ray replaces it if this raises."""
        if self._serving.done():
            raise RuntimeError("the front does not serve any more")

    async def __del__(self) -> None:
        """Ray calls it before it ends the actor: new connections go to other fronts, and answers under way are sent."""
        with contextlib.suppress(OSError):  # then some of those who connect now are reset
            await shared_port.take_no_more(self._socket)
        await self._server.retire(self._options.shutdown_timeout_s)
        await self._serving
        await self._listener.aclose()
        await self._silence.aclose()

    def _listen(self, replicas: Sequence[Replica]) -> None:
        self._metrics.add("replicas", len(replicas))
        self._listener.set({each.id: each.reports for each in replicas if each.reports})
