"""Listens to what replicas report: one encrypted connection a replica, which ZeroMQ makes again when it is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec
import zmq
import zmq.asyncio

from mmserve.cluster.front.server_facts import ServerFacts
from mmserve.cluster.scale.reports import Holdings, Load, decoded
from mmserve.ipc.links.cluster_key import ClusterKey
from mmserve.ipc.links.curve import use_key
from mmserve.ipc.links.snapshots import ask
from mmserve.runtime.logs.seldom import Seldom

_UNREAD_REPORTS = 100
_RECONNECT_MS, _MAX_RECONNECT_MS = 100, 2000
_ASK_S = 1.0
"""Between two questions for a snapshot. Until one has come, each report says again that something is missing."""
_AGAIN_S = 1.0
"""Until a connection is tried again that could not be made, as without a free descriptor."""
logger = logging.getLogger(__name__)


class Known(Protocol):
    """Implemented by scale.cluster.Cluster, and by on_ray.known.KnownReplicas for a process with several threads."""

    def load(self, replica: str, load: Load, now_s: float) -> None: ...

    def hold(self, replica: str, report: Holdings) -> bool: ...


class ReportListener:
    """Feeds ``cluster``. ``heard``: called after each report. Used from one event loop."""

    def __init__(
        self,
        cluster: Known,
        key: ClusterKey,
        facts: ServerFacts | None = None,
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._facts = facts or ServerFacts()
        self._heard = heard
        self._key = key
        self._seldom = Seldom()
        self._context = zmq.asyncio.Context()
        self._tasks: dict[str, tuple[str, asyncio.Task[None]]] = {}
        self._live: set[asyncio.Task[None]] = set()
        """Also those that were cancelled and have not closed their socket yet."""

    def set(self, endpoints: dict[str, str]) -> None:
        """Where each replica reports, by id. Those that are left out are no longer listened to."""
        self._facts.keep(set(endpoints))
        for replica in [*self._tasks]:
            if endpoints.get(replica) != self._tasks[replica][0]:
                self._tasks.pop(replica)[1].cancel()
        for replica, endpoint in endpoints.items():
            if replica not in self._tasks:
                task = asyncio.create_task(self._listen(replica, endpoint), name=f"reports of {replica}")
                self._tasks[replica] = (endpoint, task)
                self._live.add(task)
                task.add_done_callback(self._live.discard)

    async def aclose(self) -> None:
        """End all connections."""
        self.set({})
        await asyncio.gather(*self._live, return_exceptions=True)
        self._context.term()  # blocks this thread while a socket is open

    async def _listen(self, replica: str, endpoint: str) -> None:
        while True:
            try:
                await self._hear(replica, endpoint)
            except (zmq.ZMQError, OSError) as error:
                if self._seldom.is_due(f"{replica} {error}"):
                    logger.warning("nothing is heard from %s, which is tried again every second: %s", replica, error)
            await asyncio.sleep(_AGAIN_S)

    async def _hear(self, replica: str, endpoint: str) -> None:
        """Raises ZMQError and OSError."""
        socket = self._context.socket(zmq.SUB)
        try:
            socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, _MAX_RECONNECT_MS)
            socket.set_hwm(_UNREAD_REPORTS)
            socket.setsockopt(zmq.IPV6, "[" in endpoint)  # for a name it would look for no other addresses
            use_key(socket, self._key)
            socket.subscribe(b"")
            socket.connect(endpoint)
            asked_s = float("-inf")
            while True:
                now_s, is_known = time.monotonic(), self._take(replica, await socket.recv())
                if not is_known and now_s - asked_s >= _ASK_S:
                    asked_s = now_s
                    ask(socket)
        finally:
            socket.close(linger=0)

    def _take(self, replica: str, data: bytes) -> bool:
        """False if something was missed."""
        try:
            report = decoded(data)
        except msgspec.DecodeError as error:
            if self._seldom.is_due(replica):
                logger.warning("a report of %s was not understood and is ignored: %s", replica, error)
            return True
        self._cluster.load(replica, report.load, time.monotonic())
        if report.facts:
            self._facts.tell(replica, report.facts)
        missed = [holdings for holdings in report.holdings if not self._cluster.hold(replica, holdings)]
        self._heard()
        return not missed
