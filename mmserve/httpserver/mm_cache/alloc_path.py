"""The two ways to a request's images in the arena, and which of them a request takes.

A lane is one alloc_version of allocation, v1 (one item after another, one RPC a call) or v2 (concurrent, one RPC a
request), with the same results and guarantees. Both run side by side against the same cache server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from mmserve.httpserver.call import LeasedItem, MediaItem, MediaRef
from mmserve.httpserver.mm_cache.traffic_split import TrafficSplit


class MediaReading(Protocol):
    async def read(self, refs: Sequence[MediaRef], cache_salt: str) -> list[MediaItem]: ...


class Leasing(Protocol):
    def hold(self, request_id: str, items: Sequence[MediaItem]) -> AbstractAsyncContextManager[list[LeasedItem]]: ...


@dataclass(frozen=True)
class AllocPath:
    """A request reads its images and holds their leases in one lane, to its end."""

    media: MediaReading
    leases: Leasing


class AllocPaths:
    """The lanes of one HTTP worker. ``draw`` gives numbers from 0 up to but not 1."""

    def __init__(
        self, v1: AllocPath, v2: AllocPath, share: TrafficSplit, draw: Callable[[], float] = random.random
    ) -> None:
        self._v1 = v1
        self._v2 = v2
        self._draw = draw
        self.share = share

    def choose(self) -> AllocPath:
        """For one request: v2 with the probability of the share, so never at 0 and always at 1."""
        return self._v2 if self._draw() < self.share.fraction else self._v1
