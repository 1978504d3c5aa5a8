"""What one front process knows of the replicas that Ray has placed. No Ray in it.

Ray copies the router's class with its module, but shares other modules: so the router, which Ray runs in a thread of
its own, and the front meet here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from mmserve.cluster.front.replicas import Replica
from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.policy import Choice, Want
from mmserve.cluster.scale.reports import Holdings, Load


class KnownReplicas:
    """Thread-safe. Ray's ids of replicas change when they start again; ours (``Replica.id``) do not."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._lock = threading.Lock()
        self._by_ray_id: dict[str, Replica] = {}
        self._on_change: Callable[[Sequence[Replica]], None] = lambda replicas: None

    def watch(self, on_change: Callable[[Sequence[Replica]], None]) -> None:
        """``on_change`` is called with all replicas, now and at each change, perhaps in another thread."""
        with self._lock:
            self._on_change = on_change
            on_change(tuple(self._by_ray_id.values()))

    def set(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        """By Ray's id: what each replica has recorded (``node.Node.record_replica_metadata``)."""
        found = {
            id: Replica(each["id"], each["url"], each["reports"]) for id, each in metadata.items() if "url" in each
        }
        with self._lock:
            if found != self._by_ray_id:
                self._by_ray_id = found
                self.cluster.set_replicas(each.id for each in found.values())
                self._on_change(tuple(found.values()))

    def ranked(self, want: Want, ray_ids: Collection[str], exclude: Collection[str]) -> list[str]:
        """All of ``ray_ids``, best first; those in ``exclude`` (ids of ours) last."""
        with self._lock:
            ours = {self._by_ray_id[each].id: each for each in ray_ids if each in self._by_ray_id}
            best = [choice.replica for choice in self.cluster.ranked(want, time.monotonic(), exclude)]
            rest = sorted(ours.keys() - best, key=lambda id: id in exclude)
            return [ours[each] for each in [*best, *rest] if each in ours]

    def sent(self, want: Want, replica: str) -> None:
        """A request was sent there."""
        with self._lock:
            choices = [each for each in self.cluster.ranked(want, time.monotonic()) if each.replica == replica]
            self.cluster.sent(choices[0] if choices else Choice(replica, 0.0, 0.0, "spread"), want, time.monotonic())

    def load(self, replica: str, load: Load, now_s: float) -> None:
        """See Cluster."""
        with self._lock:
            self.cluster.load(replica, load, now_s)

    def hold(self, replica: str, report: Holdings) -> bool:
        """See Cluster."""
        with self._lock:
            return self.cluster.hold(replica, report)

    def failed(self, replica: str) -> None:
        """It has lost a request."""
        with self._lock:
            self.cluster.failed(replica, time.monotonic())

    def answered(self, replica: str) -> None:
        """It has answered a request."""
        with self._lock:
            self.cluster.answered(replica)


known = KnownReplicas()
"""Of this process."""
