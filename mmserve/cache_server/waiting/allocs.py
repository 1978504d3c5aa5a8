"""Leases images at once where there is space, or when their turn has come and space was freed."""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.entry_store import arena_nbytes
from mmserve.cache_server.table import MediaTable
from mmserve.cache_server.waiting.alloc_queue import AllocQueue, QueuedAlloc
from mmserve.cache_server.waiting.pending import Answered, PendingCalls, Reply
from mmserve.messages.cache import AllocItem, AllocReply

FULL = AllocReply(refused="full")
_MAX_TRIES_KEEPING_CACHED = 8
"""Tries of a waiting allocation before its own cached images may be evicted to make room for its others."""


class WaitingAllocs:
    """The queue of allocations, in front of the table. Every method needs the lock of ``pending`` held."""

    def __init__(self, table: MediaTable, pending: PendingCalls) -> None:
        self._table = table
        self._pending = pending
        self._queue = AllocQueue()

    def __len__(self) -> int:
        """Number of allocations that wait."""
        return len(self._queue)

    def alloc(self, lease: Lease, items: Sequence[AllocItem], wait_s: float) -> Reply[AllocReply]:
        """Lease all items or none; waits up to wait_s for space, behind allocations that came before (AllocQueue)."""
        needed = self._table.missing_nbytes(items) if self._queue else 0
        if not needed or self._queue.may_pass(needed):
            reply = self._table.alloc(lease, items)
            if reply.refused != "full":
                if needed and not reply.refused:
                    self._queue.passed(needed)
                return Answered(reply)
        if wait_s <= 0:
            return Answered(FULL)
        queued = QueuedAlloc(lease, items, arena_nbytes(items))
        self._queue.append(queued)
        return self._pending.start(
            lease.owner,
            wait_s,
            lambda: self._try(queued),
            lambda: FULL,
            lambda reply: self._queue.remove(queued),
        )

    def release(self, lease: Lease) -> bool:
        """Give up the lease's waiting allocations at their next try. True if there are any."""
        waiting = self._queue.of(lease)
        for queued in waiting:
            queued.is_released = True
        return bool(waiting)

    def _try(self, queued: QueuedAlloc) -> AllocReply | None:
        if queued.is_released:
            return FULL
        if queued.num_freed_at_try == self._table.num_freed:
            return None
        if not self._queue.is_first(queued):
            return self._try_to_pass(queued)
        queued.num_freed_at_try = self._table.num_freed
        queued.num_tries += 1
        reply = self._table.alloc(queued.lease, queued.items)
        if reply.refused != "full":
            return reply
        if self._table.num_leases and queued.num_tries < _MAX_TRIES_KEEPING_CACHED:
            return None
        # Some of the request's images are cached. They are not evicted for its other images, but may lie where those
        # would fit. Others have freed space several times without success, or hold no lease that could end. So evict
        # the cached images too, and allocate all of them again.
        if not self._table.evict_own(queued.items):
            return None
        reply = self._table.alloc(queued.lease, queued.items)
        return None if reply.refused == "full" else reply

    def _try_to_pass(self, queued: QueuedAlloc) -> AllocReply | None:
        needed = self._table.missing_nbytes(queued.items)
        if not self._queue.may_pass(needed, queued):
            return None
        queued.num_freed_at_try = self._table.num_freed
        reply = self._table.alloc(queued.lease, queued.items)
        if reply.refused == "full":
            return None
        if not reply.refused:
            self._queue.passed(needed, queued)
        return reply
