"""What one front process knows of the replicas that Ray has placed. No Ray in it.

Ray copies the router's class with its module, but shares other modules: so the router, which Ray runs in a thread of
its own, and the front meet here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import chain

from mmserve.cluster.front.replicas import Replica
from mmserve.cluster.on_ray.asked import Asked
from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.policy import Choice
from mmserve.cluster.scale.reports import Holdings, Load


class KnownReplicas:
    """Thread-safe. Ray's ids of replicas change when they start again; ours (``Replica.id``) do not."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._lock = threading.Lock()
        self._by_ray_id: dict[str, Replica] = {}
        self._ray_ids: Mapping[str, str] = {}
        """By id of ours. Replaced, never changed."""
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
                self._ray_ids = {each.id: ray_id for ray_id, each in found.items()}
                self.cluster.set_replicas(each.id for each in found.values())
                self._on_change(tuple(found.values()))

    def ids(self) -> Set[str]:
        """Of all replicas, ours."""
        return self._ray_ids.keys()

    def ranked(self, asked: Asked) -> Iterator[str]:
        """Ray's ids of all replicas, best first; those that the request excludes last. ``asked`` is told each one.
        Looks at the few best alone unless more are wanted: there may be a thousand.

        The one that was looked at last counts as having the request: other requests are decided before Ray has taken
        it, perhaps all of a burst."""
        with self._lock:
            best = self.cluster.ranked(asked.want, time.monotonic(), asked.exclude)
            ray_ids = self._ray_ids
        if asked.exclude:
            best.sort(key=lambda choice: asked.exclude.get(choice.replica, -1))

        def others() -> Iterator[Choice]:
            rest = ray_ids.keys() - {choice.replica for choice in best}
            for replica in sorted(rest, key=lambda id: asked.exclude.get(id, -1)):
                yield Choice(replica, 0.0, 0.0, "spread")

        for choice in chain(best, others()):
            self._offered(choice)
            asked.offer(choice)
            yield ray_ids[choice.replica]
            self._withdrawn(choice)
        asked.offered_all()

    def _offered(self, choice: Choice) -> None:
        with self._lock:
            self.cluster.offered(choice, time.monotonic())

    def _withdrawn(self, choice: Choice) -> None:
        with self._lock:
            self.cluster.withdrawn(choice)

    def sent(self, asked: Asked) -> None:
        """The request was sent to the replica that was offered last."""
        if asked.choice is not None:
            with self._lock:
                self.cluster.sent(asked.choice, asked.want, time.monotonic())

    def load(self, replica: str, load: Load, now_s: float) -> None:
        """See Cluster."""
        with self._lock:
            self.cluster.load(replica, load, now_s)

    def hold(self, replica: str, report: Holdings) -> bool:
        """See Cluster."""
        with self._lock:
            return self.cluster.hold(replica, report)

    def mute(self, now_s: float) -> list[str]:
        """See Cluster."""
        with self._lock:
            return self.cluster.mute(now_s)

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
