"""Ray Serve's router, with our order of replicas. The only file that knows its interface, which is alpha.

Ray copies this class with its globals into other processes; a module is not copied but imported there.
"""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from mmserve.cluster.on_ray import known as process


class PictureRouter(RequestRouter):
    """Asks ``known.known`` where a request goes: arguments ``want`` and ``exclude`` of ``choose_replica``."""

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Ray's news of the replicas that run."""
        super().update_replicas(replicas)
        process.known.set({each.replica_id.unique_id: each.replica_metadata for each in replicas})

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of one replica each: Ray reserves a place at the first that has one."""
        if pending_request is None or "want" not in pending_request.kwargs:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # otherwise Ray asks again without a pause
        asked: dict[str, Any] = pending_request.kwargs
        by_id = {each.replica_id.unique_id: each for each in candidate_replicas}
        return [[by_id[id]] for id in process.known.ranked(asked["want"], by_id.keys(), asked["exclude"])]
