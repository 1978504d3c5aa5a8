"""MediaTable for many connections at once: the lock, the waiting, and which owners are alive.

Waiting is on conditions, never with the lock held. Knows no RPC.
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
from typing import TypeVar

from mmserve.cache_server.decode_permits import DecodePermits, QueuedRequest
from mmserve.cache_server.entries import Lease
from mmserve.cache_server.table import MediaTable
from mmserve.messages.cache import AllocItem, AllocReply, EmbedState, ItemState, PermitRequest, PermitsReply
from mmserve.runtime.byte_budget import ByteBudget

_PATIENT_TRIES = 8
"""Of an allocation, before it lets go of what is cached of its own images."""
T = TypeVar("T")
logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Ticket:
    """An allocation that waits for space."""

    lease: Lease
    given_up: bool = False
    tried_at: int = -1
    """How much had been given back when it last found no space."""
    tries: int = 0


@dataclass(frozen=True)
class Snapshot:
    """For the metrics: gauges now, counters since the last snapshot."""

    usage: dict[tuple[str, str], tuple[int, int]]
    num_leases: int
    num_waiting: int
    num_permits: int
    peak_permits: int
    """Most permits ever out at once."""
    num_permits_waiting: int
    budgets: dict[str, ByteBudget]
    """Form of an image -> as it was then."""
    counters: Counter[tuple[str, ...]]


class SharedMediaTable:
    """Thread-safe. An owner is alive while one of its connections is."""

    def __init__(
        self, slots: MediaTable, permits: DecodePermits | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._slots = slots
        self._permits = permits or DecodePermits(0, sys.maxsize)
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[_Ticket] = deque()
        """Allocations that wait for space, in order of arrival."""
        self._connections: Counter[str] = Counter()
        self._unregistered: set[str] = set()

    def connect(self, owner: str) -> None:
        """A connection of ``owner`` begins."""
        with self._changed:
            self._connections[owner] += 1

    def disconnect(self, owner: str) -> None:
        """A connection ends; with the owner's last one all it held is given back."""
        with self._changed:
            self._connections[owner] -= 1
            if self._connections[owner] <= 0:
                del self._connections[owner]
                self._permits.drop_owner(owner)
                self._drop_leases(owner)
            self._changed.notify_all()

    def _drop_leases(self, owner: str) -> None:
        """When this is a leak, whoever reads the metrics of a server that ends is gone as well: hence the log."""
        count, unregistered = self._slots.drop_owner(owner), owner in self._unregistered
        self._unregistered.discard(owner)
        self._slots.counters["mm_lease_leaks" if unregistered else "mm_leases_reclaimed",] += count
        if unregistered and count:
            logger.error("%s forgot %d leases", owner, count)

    def unregister(self, owner: str) -> None:
        """The owner is about to end in good order: leases that it still has when its connections end are leaks."""
        with self._changed:
            self._unregistered.add(owner)

    def alloc(self, lease: Lease, items: Sequence[AllocItem], wait_s: float) -> AllocReply:
        """All or none; waits up to wait_s for space, behind those who came before."""
        with self._changed:
            if lease.owner not in self._connections:
                return AllocReply(refused="full")  # a last call of a process whose leases are gone already
            if not self._queue or not self._slots.needs_space(items):
                reply = self._slots.alloc(lease, items)
                if reply.refused != "full":
                    return reply
            if wait_s <= 0:
                return AllocReply(refused="full")
            return self._alloc_in_turn(lease, items, wait_s)

    def _alloc_in_turn(self, lease: Lease, items: Sequence[AllocItem], wait_s: float) -> AllocReply:
        ticket = _Ticket(lease)
        full = AllocReply(refused="full")
        self._queue.append(ticket)

        def attempt() -> AllocReply:
            if self._queue[0] is not ticket or ticket.given_up or ticket.tried_at == self._slots.num_given_back:
                return full
            ticket.tried_at = self._slots.num_given_back
            ticket.tries += 1
            reply = self._slots.alloc(lease, items)
            if reply.refused != "full" or (self._slots.num_leases and ticket.tries < _PATIENT_TRIES):
                return reply
            # What others give back does not help, or nobody has anything: its own cached images are in the way.
            return self._slots.alloc(lease, items) if self._slots.evict_own(items) else reply

        try:
            return self._wait(
                lease.owner, wait_s, attempt, lambda reply: ticket.given_up or reply.refused != "full", full
            )
        finally:
            self._queue.remove(ticket)
            self._changed.notify_all()  # the next in line may be small enough for what is free already

    def held(self, lease: Lease) -> tuple[AllocItem, ...]:
        """What the lease holds."""
        with self._changed:
            return self._slots.held(lease)

    def release(self, lease: Lease) -> None:
        """End the lease; harmless without one. An allocation that still waits for space under it waits no more."""
        with self._changed:
            waiting = [ticket for ticket in self._queue if ticket.lease == lease]
            for ticket in waiting:
                ticket.given_up = True
            if self._slots.release(lease) or waiting:
                self._changed.notify_all()

    def set_data(self, lease: Lease, item_ids: Sequence[int], ok: bool) -> None:
        """See MediaTable.set_data."""
        with self._changed:
            self._slots.set_data(lease, item_ids, ok)
            self._changed.notify_all()

    def get_data(self, lease: Lease, item_ids: Sequence[int], wait_s: float) -> tuple[ItemState, ...]:
        """States; waits up to wait_s while some say "wait" and none asks its reader to act."""

        def settled(states: tuple[ItemState, ...]) -> bool:
            return "wait" not in states or "write" in states or "gone" in states

        with self._changed:
            gone: tuple[ItemState, ...] = tuple("gone" for _ in item_ids)
            return self._wait(lease.owner, wait_s, lambda: self._slots.get_data(lease, item_ids), settled, gone)

    def set_embed(self, owner: str, item_ids: Sequence[int], ok: Sequence[bool]) -> tuple[EmbedState, ...]:
        """See MediaTable.set_embed."""
        with self._changed:
            states = self._slots.set_embed(owner, item_ids, ok)
            self._changed.notify_all()
            return states

    def get_embed(self, owner: str, item_ids: Sequence[int]) -> tuple[EmbedState, ...]:
        """See MediaTable.get_embed."""
        with self._changed:
            if owner not in self._connections:
                return tuple("gone" for _ in item_ids)
            return self._slots.get_embed(owner, item_ids)

    def acquire_permits(self, owner: str, requests: Sequence[PermitRequest], wait_s: float) -> PermitsReply:
        """Waits up to wait_s until a permit is granted or promised, or none of the requests waits for one any more.

        Permits last until ``release_permit`` or the owner's end.
        """
        leases = [Lease(owner, request.name) for request in requests]
        with self._changed:
            if owner not in self._connections:
                return PermitsReply()
            for lease, request in zip(leases, requests, strict=True):
                self._permits.enqueue(QueuedRequest(request.arrival_s, lease, request.pixel_nbytes))
            answer = self._wait(
                owner, wait_s, lambda: self._permits.answer(leases), lambda reply: reply is not None, None
            )
            reply = answer or PermitsReply()
            self._permits.release_others(leases, reply)
            self._changed.notify_all()  # others in the queue may be granted theirs
            return reply

    def release_permit(self, lease: Lease) -> None:
        """End the request's permit, promise or waiting. Harmless without any."""
        with self._changed:
            if self._permits.release(lease):
                self._changed.notify_all()

    def snapshot(self) -> Snapshot:
        """Takes the lock, so it also proves that the table is not stuck."""
        with self._changed:
            counters, self._slots.counters = self._slots.counters, Counter()
            permits, claims = self._permits, self._slots.claims
            budgets = {"data": claims.data, "embeddings": claims.embeds, "pixels": permits.pixels}
            return Snapshot(
                self._slots.usage(),
                self._slots.num_leases,
                len(self._queue),
                permits.num_granted,
                permits.peak,
                permits.num_waiting,
                {form: copy(budget) for form, budget in budgets.items()},
                counters,
            )

    def _wait(
        self, owner: str, wait_s: float, attempt: Callable[[], T], settled: Callable[[T], bool], orphaned: T
    ) -> T:
        """Attempt after every change until the result is settled, time is up, or the owner is gone."""
        deadline_s = self._clock() + wait_s
        while True:
            if owner not in self._connections:
                return orphaned
            result = attempt()
            left_s = deadline_s - self._clock()
            if settled(result) or left_s <= 0:
                return result
            self._changed.wait(left_s)
