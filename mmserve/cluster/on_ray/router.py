"""Ray Serve's router, with our order of replicas. Its interface is alpha: ``placement`` and ``apps`` use it too.

Ray copies this class with its globals into other processes; a module is not copied but imported there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from mmserve.cluster.on_ray import known as process
from mmserve.cluster.on_ray.asked import Asked


class PictureRouter(RequestRouter):
    """Asks ``known.known`` where a request goes: argument ``asked`` of ``choose_replica``."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Ray's news of the replicas that run."""
        super().update_replicas(replicas)
        self._by_id = {each.replica_id.unique_id: each for each in replicas}
        process.known.set({id: each.replica_metadata for id, each in self._by_id.items()})

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> Iterable[list[RunningReplica]]:
        """Ranks of one replica each, made as Ray looks at them: it takes the first that has a place."""
        if pending_request is None or "asked" not in pending_request.kwargs:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # otherwise Ray asks again without a pause
        return self._ranks(pending_request.kwargs["asked"])

    def _ranks(self, asked: Asked) -> Iterator[list[RunningReplica]]:
        for id in process.known.ranked(asked):
            replica = self._by_id.get(id)
            if replica is not None and replica.replica_id in self.curr_replicas:  # it may have left meanwhile
                yield [replica]
