"""Allocations that wait for space: in order of arrival, but a request may be passed by smaller ones, within bounds.

A request that needs one large stretch would else keep out all that fit beside it. Those that pass it may lease, all
together, at most as many bytes as it needs itself, and be at most MAX_PASSES. So it waits no longer than it would if
one more request of its own size had come before it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmserve.cache_server.entries import Lease
from mmserve.messages.cache import AllocItem

MAX_PASSES = 256


@dataclass(eq=False)
class QueuedAlloc:
    """An allocation waiting for space."""

    lease: Lease
    items: Sequence[AllocItem]
    nbytes: int
    """Arena bytes of all its items."""
    is_released: bool = False
    num_freed_at_try: int = -1
    """MediaTable.num_freed at the last try; -1 before the first. While it is the same, a try would fail again."""
    num_tries: int = 0
    """As the first of the queue."""
    passed_nbytes: int = 0
    """Bytes that later requests have leased while this one waited."""
    num_passes: int = 0


class AllocQueue:
    """The waiting allocations."""

    def __init__(self) -> None:
        self._queued: list[QueuedAlloc] = []

    def __len__(self) -> int:
        return len(self._queued)

    def of(self, lease: Lease) -> list[QueuedAlloc]:
        return [queued for queued in self._queued if queued.lease == lease]

    def append(self, queued: QueuedAlloc) -> None:
        self._queued.append(queued)

    def remove(self, queued: QueuedAlloc) -> None:
        """Its allocation was made, or has been given up."""
        was_first = self.is_first(queued)
        self._queued.remove(queued)
        if was_first and self._queued:
            self._queued[0].num_freed_at_try = -1  # the first may also evict its own cached images

    def is_first(self, queued: QueuedAlloc) -> bool:
        return self._queued[0] is queued

    def may_pass(self, nbytes: int, queued: QueuedAlloc | None = None) -> bool:
        """Whether all requests ahead of ``queued`` (None: all that wait) may be passed by one of ``nbytes``."""
        return all(
            each.passed_nbytes + nbytes <= each.nbytes and each.num_passes < MAX_PASSES for each in self._ahead(queued)
        )

    def passed(self, nbytes: int, queued: QueuedAlloc | None = None) -> None:
        """A request of ``nbytes`` has passed all ahead of ``queued``."""
        for each in self._ahead(queued):
            each.passed_nbytes += nbytes
            each.num_passes += 1

    def _ahead(self, queued: QueuedAlloc | None) -> Iterator[QueuedAlloc]:
        for each in self._queued:
            if each is queued:
                return
            yield each
