"""Makes MediaTable and DecodePermits thread-safe, lets calls wait, and ends what a process held when it is gone.

One lock guards both. A call that has to wait returns at once with a pending reply (see ``pending``). A process is an
owner of leases and permits; it is gone when its last connection ends.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

from mmserve.cache_server.decode_permits import DecodePermits, QueuedRequest
from mmserve.cache_server.entries import Lease
from mmserve.cache_server.pending import Answered, PendingCalls, Reply
from mmserve.cache_server.table import MediaTable
from mmserve.messages.cache import AllocItem, AllocReply, EmbedState, ItemState, PermitRequest, PermitsReply
from mmserve.runtime.byte_budget import ByteBudget

_MAX_TRIES_KEEPING_CACHED = 8
"""Tries of a waiting allocation before its own cached images may be evicted to make room for its others."""
_FULL = AllocReply(refused="full")
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _QueuedAlloc:
    """An allocation waiting for space."""

    lease: Lease
    items: Sequence[AllocItem]
    is_released: bool = False
    num_freed_at_try: int = -1
    """MediaTable.num_freed at the last try; -1 before the first. While it is the same, a try would fail again."""
    num_tries: int = 0


@dataclass(frozen=True)
class Snapshot:
    """For the metrics: gauges now, counters since the last snapshot."""

    usage: dict[tuple[str, str], tuple[int, int]]
    num_leases: int
    num_waiting: int
    """Allocations waiting for space."""
    num_permits: int
    peak_permits: int
    """Maximum of permits granted at the same time."""
    num_permits_waiting: int
    budgets: dict[str, ByteBudget]
    """Copies, by form of an image."""
    counters: Counter[tuple[str, ...]]


class SharedMediaTable:
    """Thread-safe. An owner is alive while it has a connection; its leases and permits end with its last one."""

    def __init__(
        self, table: MediaTable, permits: DecodePermits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._table = table
        self._permits = permits or DecodePermits(0, sys.maxsize)
        self._lock = threading.Lock()
        self._pending = PendingCalls(self._lock, clock)
        self._queue: deque[_QueuedAlloc] = deque()
        """Allocations waiting for space, in order of arrival."""
        self._connections: Counter[str] = Counter()
        self._unregistered: set[str] = set()

    # Owners

    def connect(self, owner: str) -> None:
        """Count a new connection of ``owner``."""
        with self._lock:
            self._connections[owner] += 1

    def disconnect(self, owner: str) -> None:
        """Count an ended connection of ``owner``; the last one ends the owner's leases and permits."""
        with self._lock:
            self._connections[owner] -= 1
            if self._connections[owner] <= 0:
                del self._connections[owner]
                self._permits.drop_owner(owner)
                self._drop_leases(owner)
                self._pending.end_owner(owner)
                self._pending.retry()

    def _drop_leases(self, owner: str) -> None:
        """End the owner's leases and count them. Leaks are also logged, because the metrics server may have ended
        before."""
        count, unregistered = self._table.drop_owner(owner), owner in self._unregistered
        self._unregistered.discard(owner)
        self._table.counters["mm_lease_leaks" if unregistered else "mm_leases_reclaimed",] += count
        if unregistered and count:
            logger.error("%s forgot %d leases", owner, count)

    def unregister(self, owner: str) -> None:
        """Announce the owner's clean end. Leases that it still has when its connections end are leaks."""
        with self._lock:
            self._unregistered.add(owner)

    # Calls of HTTP workers

    def alloc(self, lease: Lease, items: Sequence[AllocItem], wait_s: float) -> Reply[AllocReply]:
        """Lease all items or none; waits up to wait_s for space, behind allocations that came before."""
        with self._lock:
            if lease.owner not in self._connections:
                # The owner has disconnected, and its leases have ended. Nothing would ever end a lease made now. The
                # reply reaches no process; "full" is one that leases nothing.
                return Answered(_FULL)
            if not self._queue or not self._table.needs_space(items):
                reply = self._table.alloc(lease, items)
                if reply.refused != "full":
                    return Answered(reply)
            if wait_s <= 0:
                return Answered(_FULL)
            queued = _QueuedAlloc(lease, items)
            self._queue.append(queued)
            return self._pending.start(
                lease.owner,
                wait_s,
                lambda: self._try_alloc(queued),
                lambda: _FULL,
                lambda reply: self._queue.remove(queued),
            )

    def _try_alloc(self, queued: _QueuedAlloc) -> AllocReply | None:
        if queued.is_released:
            return _FULL
        if self._queue[0] is not queued or queued.num_freed_at_try == self._table.num_freed:
            return None
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

    def items_of(self, lease: Lease) -> tuple[AllocItem, ...]:
        """See MediaTable.items_of."""
        with self._lock:
            return self._table.items_of(lease)

    def release(self, lease: Lease) -> None:
        """End the lease, and its allocations waiting for space. No error if there are none."""
        with self._lock:
            waiting = [queued for queued in self._queue if queued.lease == lease]
            for queued in waiting:
                queued.is_released = True
            if self._table.release(lease) or waiting:
                self._pending.retry()

    def set_data(self, lease: Lease, item_ids: Sequence[int], ok: bool) -> None:
        """See MediaTable.set_data."""
        with self._lock:
            self._table.set_data(lease, item_ids, ok)
            self._pending.retry()

    def get_data(self, lease: Lease, item_ids: Sequence[int], wait_s: float) -> Reply[tuple[ItemState, ...]]:
        """States; waits up to wait_s while some say "wait" and none asks the caller to act."""

        def attempt() -> tuple[ItemState, ...] | None:
            states = self._table.get_data(lease, item_ids)
            return states if "wait" not in states or "write" in states or "gone" in states else None

        with self._lock:
            return self._pending.start(lease.owner, wait_s, attempt, lambda: self._table.get_data(lease, item_ids))

    # Calls of visual servers

    def set_embed(self, owner: str, item_ids: Sequence[int], ok: Sequence[bool]) -> tuple[EmbedState, ...]:
        """See MediaTable.set_embed."""
        with self._lock:
            states = self._table.set_embed(owner, item_ids, ok)
            self._pending.retry()
            return states

    def get_embed(self, owner: str, item_ids: Sequence[int]) -> tuple[EmbedState, ...]:
        """See MediaTable.get_embed."""
        with self._lock:
            if owner not in self._connections:
                return tuple("gone" for _ in item_ids)
            return self._table.get_embed(owner, item_ids)

    def acquire_permits(self, owner: str, requests: Sequence[PermitRequest], wait_s: float) -> Reply[PermitsReply]:
        """Waits up to wait_s until a permit is granted or promised.

        The reply is empty if there is none by then, or once all of the requests were released. Permits last until
        ``release_permit`` or the owner's end.
        """
        leases = [Lease(owner, request.name) for request in requests]
        with self._lock:
            if owner not in self._connections:
                return Answered(PermitsReply())
            for lease, request in zip(leases, requests, strict=True):
                self._permits.enqueue(QueuedRequest(request.arrival_s, lease, request.pixel_nbytes))
            reply = self._pending.start(
                owner,
                wait_s,
                lambda: self._permits.answer(leases),
                PermitsReply,
                lambda reply: self._permits.release_others(leases, reply or PermitsReply()),
            )
            self._pending.retry()  # others in the queue may have been granted theirs
            return reply

    def release_permit(self, lease: Lease) -> None:
        """End the request's permit, promise or waiting. Harmless without any."""
        with self._lock:
            if self._permits.release(lease):
                self._pending.retry()

    # Metrics

    def snapshot(self) -> Snapshot:
        """Takes the lock, so it also proves that the table is not stuck."""
        with self._lock:
            permits, lease_budgets = self._permits, self._table.budgets
            budgets = {"data": lease_budgets.data, "embeddings": lease_budgets.embeds, "pixels": permits.pixels}
            return Snapshot(
                self._table.usage(),
                self._table.num_leases,
                len(self._queue),
                permits.num_granted,
                permits.peak,
                permits.num_waiting,
                {form: copy(budget) for form, budget in budgets.items()},
                self._table.take_counters(),
            )
