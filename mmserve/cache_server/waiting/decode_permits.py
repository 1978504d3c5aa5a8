"""Permits to decode images: bounds the requests and the bytes of pixels decoded at once, over all visual servers.

A visual server asks for one permit a request. Permits are granted in order of the requests' arrival. Pure: no clock, no
lock; the caller asks for ``answer`` again after every change until there is one.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

from mmserve.cache_server.entries import Lease
from mmserve.messages.cache import PermitsReply
from mmserve.runtime.byte_budget import ByteBudget


class QueuedRequest(NamedTuple):
    """A request without a permit. Sorts by arrival."""

    arrival_s: float
    lease: Lease
    nbytes: int
    """Bytes of the request's decoded pixels."""


class DecodePermits:
    """At most ``max_requests`` permits (0: no limit) for at most ``pixel_nbytes`` bytes at once."""

    def __init__(self, max_requests: int, pixel_nbytes: int) -> None:
        self._max_requests = max_requests
        self.pixels = ByteBudget(pixel_nbytes)
        self.peak = 0
        """Maximum of permits granted at the same time."""
        self._granted: dict[Lease, int] = {}
        self._queue: list[QueuedRequest] = []
        self._promised: QueuedRequest | None = None
        """Granted when the only permit that is out is released; both belong to the same visual server."""

    @property
    def num_granted(self) -> int:
        return len(self._granted)

    @property
    def num_waiting(self) -> int:
        return len(self._queue) + (self._promised is not None)

    def enqueue(self, request: QueuedRequest) -> None:
        """Add a request to the queue, unless it is there or has a permit."""
        if not self.is_known(request.lease):
            insort(self._queue, request)

    def advance(self) -> None:
        """Grant permits to the head of the queue while they fit; promise the next one if possible.

        If one permit is out and the head of the queue belongs to the same visual server, promise it: that server may
        start it when its current permit ends, without an RPC.
        """
        while self._queue and self._fits(self._queue[0].nbytes):
            self._grant(self._queue.pop(0))
        owners = [lease.owner for lease in self._granted]
        if self._promised is None and self._queue and owners == [self._queue[0].lease.owner]:
            self._promised = self._queue.pop(0)

    def is_granted(self, lease: Lease) -> bool:
        return lease in self._granted

    def is_promised(self, lease: Lease) -> bool:
        return self._promised is not None and self._promised.lease == lease

    def is_known(self, lease: Lease) -> bool:
        """True if the request is queued, promised a permit or has one."""
        return lease in self._granted or any(request.lease == lease for request in self._waiting())

    def answer(self, leases: Sequence[Lease]) -> PermitsReply | None:
        """The reply to one visual server's call for these requests; None: there is nothing to tell it yet.

        The reply is empty if all of them were released while the call waited. The caller releases those of ``leases``
        that are not in the reply (``release_others``).
        """
        self.advance()
        granted = tuple(lease.request_id for lease in leases if self.is_granted(lease))
        promised = next((lease.request_id for lease in leases if self.is_promised(lease)), "")
        if granted or promised or not any(map(self.is_known, leases)):
            return PermitsReply(granted=granted, promised=promised)
        return None

    def release_others(self, leases: Sequence[Lease], reply: PermitsReply) -> None:
        """Remove requests from the queue that the reply does not name. The next call asks for them again."""
        for lease in leases:
            if lease.request_id not in (*reply.granted, reply.promised):
                self.release(lease)

    def release(self, lease: Lease) -> bool:
        """End a permit, a promise or a queued request for one. Returns False if there was none."""
        known = self.is_known(lease)
        if lease in self._granted:
            self.pixels.give(self._granted.pop(lease))
            promised, self._promised = self._promised, None
            if promised is not None:
                self._grant(promised)
        elif self.is_promised(lease):
            self._promised = None
        else:
            self._queue = [request for request in self._queue if request.lease != lease]
        if known:
            self.advance()
        return known

    def drop_owner(self, owner: str) -> None:
        """Release everything of a visual server that is gone; its promise before its permits."""
        for lease in [*(request.lease for request in self._waiting()), *self._granted]:
            if lease.owner == owner:
                self.release(lease)

    def _waiting(self) -> list[QueuedRequest]:
        return self._queue if self._promised is None else [self._promised, *self._queue]

    def _grant(self, request: QueuedRequest) -> None:
        self._granted[request.lease] = request.nbytes
        self.pixels.take(request.nbytes)
        self.peak = max(self.peak, len(self._granted))

    def _fits(self, nbytes: int) -> bool:
        """A request larger than the whole budget is decoded alone (HTTP workers refuse those)."""
        if self._promised is not None:
            return False
        if self._max_requests and len(self._granted) >= self._max_requests:
            return False
        return self.pixels.fits(nbytes) or not self._granted
