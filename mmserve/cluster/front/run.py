"""The process of ``mmserve front``: listens, forwards, ends on SIGTERM once the answers under way have been sent."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import uvloop

from mmserve.cluster.front.app import make_app
from mmserve.cluster.front.attempts import Attempts
from mmserve.cluster.front.metrics import FrontMetrics
from mmserve.cluster.front.replicas import Placement, Replica, Replicas
from mmserve.cluster.front.reports import ReportListener
from mmserve.cluster.front.request.wants import Namer
from mmserve.cluster.front.server_facts import ServerFacts
from mmserve.cluster.front.silence import SilenceWatch
from mmserve.httpserver.api.openai.errors import error_body
from mmserve.httpserver.http.connections import ConnectionLimits, OpenConnections
from mmserve.httpserver.http.uvicorn_server import UvicornServer
from mmserve.ipc.links.cluster_key import ClusterKey
from mmserve.runtime.byte_budget import MIB, ByteBudget
from mmserve.runtime.errors import Unavailable


@dataclass(frozen=True)
class FrontOptions:
    """What the user asked for."""

    key: ClusterKey
    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_mb: float = 64.0
    body_budget_mb: float = 1024.0
    max_connections: int = 4096
    shutdown_timeout_s: float = 30.0
    patience_s: float = 60.0
    """See Attempts."""


class Front:
    """``set_replicas`` is to be called before requests come, and again whenever they change."""

    def __init__(self, options: FrontOptions) -> None:
        self._options = options
        self.metrics = FrontMetrics()
        self.replicas = Replicas(self.metrics)
        self.placement: Placement = self.replicas
        """Where requests go, if not by the front's own decisions. Set before ``server``."""
        self.silence = SilenceWatch(self.replicas.cluster.mute, lambda replica: self.placement.upstream(replica))
        self._listener: ReportListener | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Within the context, replicas that report are listened to."""
        facts = ServerFacts(partial(self.metrics.add, "kinds_of_replicas"))
        self._listener = ReportListener(self.replicas.cluster, self._options.key, facts, self.silence.heard)
        try:
            yield
        finally:
            await self._listener.aclose()
            await self.silence.aclose()
            self._listener = None

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """All that there are now."""
        self.replicas.set({each.id: each.url for each in replicas})
        if self._listener is not None:
            self._listener.set({each.id: each.reports for each in replicas if each.reports})

    def server(self, on_started: Callable[[], None]) -> UvicornServer:
        """Serves on the sockets that its ``serve`` gets."""
        options = self._options
        app = make_app(
            Attempts(self.placement, self.metrics, options.key.fronts, options.patience_s),
            Namer(options.key.fronts),
            max_body_nbytes=int(options.max_body_mb * MIB),
            bodies=ByteBudget(int(options.body_budget_mb * MIB)),
            host=options.host,
            allowed_hosts=options.allowed_hosts,
            allowed_origins=options.allowed_origins,
        )
        refusal = Unavailable(f"{options.max_connections} connections are open already (--max-connections)")
        limits = ConnectionLimits(max_connections=options.max_connections)
        return UvicornServer(app, on_started, OpenConnections(limits, self.metrics, error_body(refusal)))


def run(
    options: FrontOptions, replicas: Sequence[Replica], listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    """Serve on ``listener`` until SIGTERM or SIGINT."""
    front = Front(options)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(front, options, replicas, listener, on_ready))


async def _serve(
    front: Front,
    options: FrontOptions,
    replicas: Sequence[Replica],
    listener: socket.socket,
    on_ready: Callable[[], None],
) -> None:
    async with front.listening():
        front.set_replicas(replicas)
        await _serve_until_signal(front, options, listener, on_ready)


async def _serve_until_signal(
    front: Front, options: FrontOptions, listener: socket.socket, on_ready: Callable[[], None]
) -> None:
    server = front.server(on_ready)
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, server.stop, options.shutdown_timeout_s)
    await server.serve(sockets=[listener])
