"""The replicas of one front: where they are, and what the front knows of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping

from mmserve.front.metrics import FrontMetrics
from mmserve.front.upstream import Upstream
from mmserve.runtime.errors import Unavailable
from mmserve.scale.cluster import Cluster
from mmserve.scale.policy import Want

_RETRY_AFTER_S = 1.0


class Replicas:
    """``cluster`` decides; its ids stay the same over a replica's restart, which may change its address."""

    def __init__(self, metrics: FrontMetrics) -> None:
        self.cluster = Cluster()
        self._metrics = metrics
        self._upstreams: dict[str, Upstream] = {}

    def set(self, urls: Mapping[str, str]) -> None:
        """The address of each replica, by id. Requests under way at others go on. Raises ValueError."""
        known = {id: upstream for id, upstream in self._upstreams.items() if urls.get(id) == upstream.url}
        for id, upstream in self._upstreams.items():
            if id not in known:
                upstream.close()
        self._upstreams = {id: known.get(id) or Upstream(url) for id, url in urls.items()}
        self.cluster.set_replicas(urls)
        self._metrics.add("replicas", len(urls))

    def choose(self, want: Want, failed: Collection[str]) -> tuple[str, Upstream]:
        """The replica for a request that those in ``failed`` have not answered. Raises Unavailable if there is none."""
        choice = self.cluster.choose(want, time.monotonic(), failed)
        if choice is None:
            raise Unavailable("there is no replica now", retry_after_s=_RETRY_AFTER_S)
        self._metrics.add("decisions", 1, choice.reason)
        return choice.replica, self._upstreams[choice.replica]

    def failed(self, replica: str) -> None:
        """It has lost a request."""
        self.cluster.failed(replica, time.monotonic())
        self._metrics.add("failed_attempts", 1, replica)

    def answered(self, replica: str) -> None:
        """It has answered a request."""
        self.cluster.answered(replica)

    def close(self) -> None:
        """End idle connections."""
        for upstream in self._upstreams.values():
            upstream.close()
