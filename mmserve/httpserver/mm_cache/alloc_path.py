"""The two allocation paths (v1, v2) for a request's images, and the choice between them.

v1 handles one image after another, with one RPC a call. v2 handles images concurrently, with one RPC a request.
Results and guarantees are the same. Both run side by side against the same cache server.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from mmserve.httpserver.call import LeasedItem, MediaItem, MediaRef
from mmserve.httpserver.mm_cache.traffic_split import TrafficSplit
from mmserve.messages.cache import AllocItem, NamedImage, StoredImage
from mmserve.messages.media import Processing
from mmserve.processors.interface import Expansion


class MediaSource(Protocol):
    """Implemented by media.reader.MediaReader."""

    async def read(self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing) -> list[MediaItem]: ...


class LeaseSource(Protocol):
    """Implemented by mm_cache.leases.MediaLeases."""

    def hold(self, request_id: str, items: Sequence[MediaItem]) -> AbstractAsyncContextManager[list[LeasedItem]]: ...

    def expansions(self, items: Sequence[MediaItem]) -> list[Expansion]: ...

    def settings_digest(self, processing: Processing) -> bytes: ...

    async def named(self, names: Sequence[bytes]) -> Sequence[NamedImage | None]: ...

    def alloc_items(self, items: Sequence[MediaItem], expansions: Sequence[Expansion]) -> list[AllocItem]: ...

    async def look_up(self, items: Sequence[AllocItem]) -> Sequence[StoredImage]: ...


@dataclass(frozen=True)
class AllocPath:
    """Reader and leases of one path. A request uses one allocation path for its whole life."""

    media: MediaSource
    leases: LeaseSource


class AllocPaths:
    """Both paths of one HTTP worker. ``draw`` returns a random number in [0, 1)."""

    def __init__(
        self, v1: AllocPath, v2: AllocPath, split: TrafficSplit, draw: Callable[[], float] = random.random
    ) -> None:
        self._v1 = v1
        self._v2 = v2
        self._draw = draw
        self.split = split

    def choose(self) -> AllocPath:
        """Path for one request: v2 with probability ``split.fraction`` (never at 0, always at 1)."""
        return self._v2 if self._draw() < self.split.fraction else self._v1
