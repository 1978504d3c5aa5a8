"""A front as a deployment: it listens itself, and asks Ray only where a request goes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException, RequestCancelledError

from mmserve.cluster.front.metrics import FrontMetrics
from mmserve.cluster.front.replicas import Replica
from mmserve.cluster.front.reports import ReportListener
from mmserve.cluster.front.run import Front, FrontOptions
from mmserve.cluster.front.server_facts import ServerFacts
from mmserve.cluster.front.upstream import Upstream
from mmserve.cluster.on_ray.held import until_over
from mmserve.cluster.on_ray.known import KnownReplicas, known
from mmserve.cluster.scale.policy import Want
from mmserve.ipc.cluster_key import ClusterKey
from mmserve.runtime.errors import Unavailable

NODES_APP, NODE = "nodes", "Node"
_RETRY_AFTER_S = 1.0
_RELEASE_S = 2.0
"""For Ray to hear that a request has ended. The client has its answer, or waits for another attempt."""
_BACKLOG = 2048
_ENDS = (RayError, RayServeException, RequestCancelledError)
logger = logging.getLogger(__name__)


class RayPlacement:
    """A Placement of ``front.replicas``: Ray's router chooses by ``known``, and counts the request while it runs."""

    def __init__(self, handle: Any, replicas: KnownReplicas, metrics: FrontMetrics) -> None:
        self._handle = handle.options(method_name="hold")
        self._known = replicas
        self._metrics = metrics
        self._upstreams: dict[str, Upstream] = {}

    @contextlib.asynccontextmanager
    async def reserved(self, want: Want, failed: Collection[str]) -> AsyncIterator[tuple[str, Upstream]]:
        """See Placement. Without any replica it waits for one, which makes Ray start one if it may (scale to zero)."""
        async with self._handle.choose_replica(want=want, exclude=tuple(failed)) as selection:
            replica, upstream = self._upstream(selection.replica_metadata)
            self._known.sent(want, replica)
            held = self._handle.dispatch(selection)
            try:
                yield replica, upstream
            finally:
                held.cancel()
                if not await until_over(held, _RELEASE_S, _ENDS):  # its machine is cut off, and Ray has not noticed yet
                    logger.info("Ray has not confirmed the end of a request at %s", replica)

    def failed(self, replica: str) -> None:
        """See Placement."""
        self._known.failed(replica)
        self._metrics.add("failed_attempts", 1, replica)

    def answered(self, replica: str) -> None:
        """See Placement."""
        self._known.answered(replica)

    def _upstream(self, metadata: dict[str, str]) -> tuple[str, Upstream]:
        if "url" not in metadata:
            raise Unavailable("a replica has not told its address yet", retry_after_s=_RETRY_AFTER_S)
        known_upstream = self._upstreams.get(metadata["id"])
        if known_upstream is None or known_upstream.url != metadata["url"]:
            known_upstream = self._upstreams[metadata["id"]] = Upstream(metadata["url"])
        return metadata["id"], known_upstream


class FrontDeployment:
    """``options``: fields of FrontOptions; ``secret``: of the cluster key, in hex; ``port``: 0 for any."""

    async def __init__(self, port: int, secret: str, options: dict[str, Any]) -> None:  # type: ignore[misc]  # Ray awaits it
        self._options = FrontOptions(ClusterKey.of(bytes.fromhex(secret)), **options)
        front = Front(self._options)
        self._metrics = front.metrics
        handle = serve.get_deployment_handle(NODE, NODES_APP)
        front.placement = RayPlacement(handle, known, front.metrics)
        facts = ServerFacts(partial(front.metrics.add, "kinds_of_replicas"))
        self._listener = ReportListener(known, self._options.key, facts)
        loop = asyncio.get_running_loop()

        def on_change(replicas: Sequence[Replica]) -> None:
            loop.call_soon_threadsafe(self._listen, replicas)

        known.watch(on_change)
        sock = socket.socket(socket.AF_INET6 if ":" in self._options.host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # several fronts of a node share the port
        sock.bind((self._options.host, port))
        sock.listen(_BACKLOG)
        self._port = sock.getsockname()[1]
        started = asyncio.Event()
        self._server = front.server(started.set)
        self._serving = asyncio.create_task(self._server.serve(sockets=[sock]))
        await started.wait()

    def port(self) -> int:
        """Where it listens."""
        return int(self._port)

    async def check_health(self) -> None:
        """Ray replaces it if this raises."""
        if self._serving.done():
            raise RuntimeError("the front does not serve any more")

    async def __del__(self) -> None:
        """Ray calls it before it ends the actor: answers under way are sent."""
        self._server.stop(self._options.shutdown_timeout_s)
        await self._serving
        await self._listener.aclose()

    def _listen(self, replicas: Sequence[Replica]) -> None:
        self._metrics.add("replicas", len(replicas))
        self._listener.set({each.id: each.reports for each in replicas if each.reports})
