"""The replicas of one front: where they are, and what the front knows of them."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, Protocol

from mmserve.cluster.front.metrics import FrontMetrics
from mmserve.cluster.front.upstream import Upstream
from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.policy import Want
from mmserve.runtime.errors import Unavailable

_RETRY_AFTER_S = 1.0
_REPORTS = re.compile(r"tcp://[^/\s]+:(\d{1,5})")
_MAX_PORT = 65535


class Replica(NamedTuple):
    """``id``: its place among others, the same after its restart. ``reports``: where it reports, if it does."""

    id: str
    url: str
    reports: str = ""

    @classmethod
    def parse(cls, text: str) -> Replica:
        """From ``URL`` or ``URL,tcp://HOST:PORT``. Raises ValueError."""
        url, _, reports = text.partition(",")
        Upstream(url)
        if reports and not ((found := _REPORTS.fullmatch(reports)) and int(found[1]) <= _MAX_PORT):
            raise ValueError(f"{reports} is no address of reports: write it as tcp://HOST:PORT")
        return cls(url.rstrip("/"), url.rstrip("/"), reports)


class Placement(Protocol):
    """Where requests go."""

    def reserved(self, want: Want, failed: Collection[str]) -> AbstractAsyncContextManager[tuple[str, Upstream]]:
        """The replica for a request that those in ``failed`` have not answered. Within the context the request counts
        as being there. Raises Unavailable if there is no replica."""

    def failed(self, replica: str) -> None:
        """It has lost a request."""

    def answered(self, replica: str) -> None:
        """It has answered a request."""

    async def has_others(self, replicas: Collection[str]) -> bool:
        """True if there is a replica that is not among these, or one starts."""

    def upstream(self, replica: str) -> Upstream | None:
        """What requests there are sent by; None: none was, or it has left."""


class Replicas:
    """A Placement by the front's own decisions, which ``cluster`` makes. Ids stay the same over a replica's restart."""

    def __init__(self, metrics: FrontMetrics) -> None:
        self.cluster = Cluster()
        self._metrics = metrics
        self._upstreams: dict[str, Upstream] = {}

    def set(self, urls: Mapping[str, str]) -> None:
        """The address of each replica, by id. Requests under way at others go on. Raises ValueError."""
        known = {id: upstream for id, upstream in self._upstreams.items() if urls.get(id) == upstream.url}
        self._upstreams = {id: known.get(id) or Upstream(url) for id, url in urls.items()}
        self.cluster.set_replicas(urls)
        self._metrics.add("replicas", len(urls))

    @asynccontextmanager
    async def reserved(self, want: Want, failed: Collection[str]) -> AsyncIterator[tuple[str, Upstream]]:
        """See Placement."""
        choice = self.cluster.choose(want, time.monotonic(), failed)
        if choice is None:
            raise Unavailable("there is no replica now", retry_after_s=_RETRY_AFTER_S)
        self._metrics.add("decisions", 1, choice.reason)
        yield choice.replica, self._upstreams[choice.replica]

    def failed(self, replica: str) -> None:
        """It has lost a request."""
        self.cluster.failed(replica, time.monotonic())
        self._metrics.add("failed_attempts", 1, replica)

    def answered(self, replica: str) -> None:
        """It has answered a request."""
        self.cluster.answered(replica)

    async def has_others(self, replicas: Collection[str]) -> bool:
        """See Placement. One that starts is listed already."""
        return not self._upstreams.keys() <= set(replicas)

    def upstream(self, replica: str) -> Upstream | None:
        """See Placement."""
        return self._upstreams.get(replica)
