"""Makes MediaTable and DecodePermits thread-safe, lets calls wait, and ends what a process held when it is gone.

One lock guards both. A call that has to wait returns at once with a pending reply (see ``pending``). A process is an
owner of leases and permits; it is gone when its last connection ends. What an owner holds also ends when it sends no
heartbeat for long (``owners``): it is stopped, and others need the space.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

from mmserve.cache_server.arena_drawing import draw
from mmserve.cache_server.entries import Lease
from mmserve.cache_server.entry_store import EmbeddingChange
from mmserve.cache_server.image_names import ImageNames
from mmserve.cache_server.owners import Owners
from mmserve.cache_server.table import MediaTable
from mmserve.cache_server.waiting.allocs import FULL, WaitingAllocs
from mmserve.cache_server.waiting.decode_permits import DecodePermits, QueuedRequest
from mmserve.cache_server.waiting.pending import Answered, PendingCalls, Reply
from mmserve.ipc.faults import NO_FAULTS, FaultPoint
from mmserve.messages.cache import (
    AllocItem,
    AllocReply,
    EmbedState,
    ItemState,
    NamedImage,
    PermitRequest,
    PermitsReply,
    StoredImage,
)
from mmserve.messages.server_state import ArenaState
from mmserve.runtime.byte_budget import ByteBudget

logger = logging.getLogger(__name__)


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
        self,
        table: MediaTable,
        permits: DecodePermits | None = None,
        clock: Callable[[], float] = time.monotonic,
        owners: Owners | None = None,
        faults: FaultPoint = NO_FAULTS,
    ) -> None:
        self.faults = faults
        self._table = table
        self._permits = permits or DecodePermits(0, sys.maxsize)
        self._lock = threading.Lock()
        self._pending = PendingCalls(self._lock, clock)
        self._allocs = WaitingAllocs(table, self._pending)
        self._owners = owners or Owners()
        self._names = ImageNames()

    # Owners

    def connect(self, owner: str) -> None:
        """Count a new connection of ``owner``."""
        with self._lock:
            self._owners.connect(owner)

    def disconnect(self, owner: str) -> None:
        """Count an ended connection of ``owner``; the last one ends the owner's leases and permits."""
        with self._lock:
            if self._owners.disconnect(owner):
                unregistered, count = self._owners.pop_unregistered(owner), self._drop(owner, may_live=False)
                self._table.counters["mm_lease_leaks" if unregistered else "mm_leases_reclaimed",] += count
                # Also logged, because the metrics server may have ended before.
                if unregistered and count:
                    logger.error("%s forgot %d leases", owner, count)
                self._pending.retry()

    def beat(self, owner: str) -> None:
        """The owner's heartbeat renews its leases."""
        with self._lock:
            self._owners.beat(owner)

    def end_silent(self) -> None:
        """End what owners hold that were silent for too long, and free what stopped writers have left since.

        Call it about twice a second.
        """
        with self._lock:
            silent = self._owners.take_silent(self._pending.clock())
            for owner in silent:
                count = self._drop(owner, may_live=True)
                self._table.counters["mm_leases_reclaimed",] += count
                if count:
                    logger.warning("no heartbeat from %s for long: its %d leases have ended", owner, count)
            if self._table.free_written() or silent:
                self._pending.retry()

    def _drop(self, owner: str, *, may_live: bool) -> int:
        """End the owner's permits, leases and waiting calls; returns how many items it had leased."""
        self._permits.drop_owner(owner)
        count = self._table.drop_owner(owner, may_live=may_live)
        self._pending.end_owner(owner)
        return count

    def unregister(self, owner: str) -> None:
        """Announce the owner's clean end. Leases that it still has when its connections end are leaks."""
        with self._lock:
            self._owners.unregister(owner)

    # Calls of HTTP workers

    def alloc(self, lease: Lease, items: Sequence[AllocItem], wait_s: float) -> Reply[AllocReply]:
        """Lease all items or none; waits up to wait_s for space, behind allocations that came before (AllocQueue)."""
        with self._lock:
            if lease.owner not in self._owners:
                # The owner has disconnected, and its leases have ended. Nothing would ever end a lease made now. The
                # reply reaches no process; "full" is one that leases nothing.
                return Answered(FULL)
            return self._allocs.alloc(lease, items, wait_s)

    def items_of(self, lease: Lease) -> tuple[AllocItem, ...]:
        """See MediaTable.items_of."""
        with self._lock:
            return self._table.items_of(lease)

    def release(self, lease: Lease) -> None:
        """End the lease, and its allocations waiting for space. No error if there are none."""
        with self._lock:
            was_waiting = self._allocs.release(lease)
            if self._table.release(lease) or was_waiting:
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

    def set_names(self, names: Sequence[bytes], images: Sequence[NamedImage]) -> None:
        """See SetNamesRequest."""
        with self._lock:
            for name, image in zip(names, images, strict=True):
                self._names.set(name, image)

    def get_names(self, names: Sequence[bytes]) -> tuple[NamedImage | None, ...]:
        """See GetNamesRequest."""
        with self._lock:
            found = map(self._names.get, names)
            return tuple(image if image and self._table.is_stored(image.item) else None for image in found)

    def look_up(self, items: Sequence[AllocItem]) -> tuple[StoredImage, ...]:
        """See LookUpRequest."""
        with self._lock:
            return tuple(map(self._table.look_up, items))

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
            if owner not in self._owners:
                return tuple("gone" for _ in item_ids)
            return self._table.get_embed(owner, item_ids)

    def acquire_permits(self, owner: str, requests: Sequence[PermitRequest], wait_s: float) -> Reply[PermitsReply]:
        """Waits up to wait_s until a permit is granted or promised.

        The reply is empty if there is none by then, or once all of the requests were released. Permits last until
        ``release_permit`` or the owner's end.
        """
        leases = [Lease(owner, request.name) for request in requests]
        with self._lock:
            if owner not in self._owners:
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

    # For people

    def drawing(self, arena_nbytes: int) -> ArenaState:
        """What is in the arena now."""
        with self._lock:
            num_leases, (extents, holes) = self._table.num_leases, self._table.extents()
        return draw(arena_nbytes, num_leases, extents, holes)

    # Events and metrics

    def take_embedding_changes(self) -> list[EmbeddingChange]:
        """See MediaTable."""
        with self._lock:
            return self._table.take_embedding_changes()

    def snapshot(self) -> Snapshot:
        """Takes the lock, so it also proves that the table is not stuck."""
        with self._lock:
            permits, lease_budgets = self._permits, self._table.budgets
            budgets = {"data": lease_budgets.data, "embeddings": lease_budgets.embeds, "pixels": permits.pixels}
            return Snapshot(
                self._table.usage(),
                self._table.num_leases,
                len(self._allocs),
                permits.num_granted,
                permits.peak,
                permits.num_waiting,
                {form: copy(budget) for form, budget in budgets.items()},
                self._table.take_counters(),
            )
