"""Where a front's requests go: it asks Ray, which asks our router. No Ray is imported here."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any

from mmserve.cluster.front.metrics import FrontMetrics
from mmserve.cluster.front.upstream import Upstream
from mmserve.cluster.on_ray.asked import Asked, ReplicaSilent
from mmserve.cluster.on_ray.held import until_over
from mmserve.cluster.on_ray.known import KnownReplicas
from mmserve.cluster.scale.policy import Want
from mmserve.runtime.errors import Unavailable

_RETRY_AFTER_S = 1.0
_CONFIRM_S = 2.0
"""For a replica to confirm that it has a place. One that is cut off or suspended would take 15 s or more until Ray
notices."""
_RELEASE_S = 2.0
"""For Ray to hear that a request has ended. The client has its answer, or waits for another attempt."""
logger = logging.getLogger(__name__)


class RayPlacement:
    """A Placement of ``front.replicas``: Ray's router chooses by ``known``, and counts the request while it runs.

    ``handle``: of Ray's deployment; ``ends``: errors of Ray that end a request there; ``are_starting``: True if Ray
    starts replicas, or would if there were room."""

    def __init__(
        self,
        handle: Any,
        replicas: KnownReplicas,
        metrics: FrontMetrics,
        ends: tuple[type[Exception], ...],
        are_starting: Callable[[], Awaitable[bool]],
        confirm_s: float = _CONFIRM_S,
    ) -> None:
        self._handle = handle.options(method_name="hold")
        self._ends, self._are_starting, self._confirm_s = ends, are_starting, confirm_s
        self._known = replicas
        self._metrics = metrics
        self._upstreams: dict[str, Upstream] = {}

    @contextlib.asynccontextmanager
    async def reserved(self, want: Want, failed: Collection[str]) -> AsyncIterator[tuple[str, Upstream]]:
        """See Placement. Without any replica it waits for one, which makes Ray start one if it may (scale to zero)."""
        async with contextlib.AsyncExitStack() as stack:
            asked, selection = await self._place(want, failed, stack)
            replica, upstream = self._upstream(selection.replica_metadata)
            self._known.sent(asked)
            if asked.choice is not None:
                self._metrics.add("decisions", 1, asked.choice.reason)
            held = self._handle.dispatch(selection)
            try:
                yield replica, upstream
            finally:
                held.cancel()
                if not await until_over(
                    held, _RELEASE_S, self._ends
                ):  # its machine is cut off, and Ray has not noticed yet
                    logger.info("Ray has not confirmed the end of a request at %s", replica)

    async def _place(self, want: Want, failed: Collection[str], stack: contextlib.AsyncExitStack) -> tuple[Asked, Any]:
        """Ray's selection, in ``stack``. A replica that does not confirm is asked again after all others. If it does
        so later, Ray gives the place back: nobody waits for it any more."""
        exclude, number = dict.fromkeys(failed, 0), 0
        while True:
            asked = Asked(want, exclude, self._confirm_s)
            try:
                async with asked.limited():
                    return asked, await stack.enter_async_context(self._handle.choose_replica(asked=asked))
            except ReplicaSilent as error:
                logger.info("%s, which Ray has not noticed yet: the request goes elsewhere", error)
                self.failed(error.replica)
                number += 1
                exclude = {**exclude, error.replica: number}

    def failed(self, replica: str) -> None:
        """See Placement."""
        self._known.failed(replica)
        self._metrics.add("failed_attempts", 1, replica)

    def answered(self, replica: str) -> None:
        """See Placement."""
        self._known.answered(replica)

    async def has_others(self, replicas: Collection[str]) -> bool:
        """See Placement."""
        return not self._known.ids() <= set(replicas) or await self._are_starting()

    def upstream(self, replica: str) -> Upstream | None:
        """See Placement."""
        return self._upstreams.get(replica)

    def _upstream(self, metadata: dict[str, str]) -> tuple[str, Upstream]:
        if "url" not in metadata:
            raise Unavailable("a replica has not told its address yet", retry_after_s=_RETRY_AFTER_S)
        known_upstream = self._upstreams.get(metadata["id"])
        if known_upstream is None or known_upstream.url != metadata["url"]:
            known_upstream = self._upstreams[metadata["id"]] = Upstream(metadata["url"])
        return metadata["id"], known_upstream
