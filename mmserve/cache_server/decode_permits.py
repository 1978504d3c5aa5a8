"""Whose images may be decoded now: so many requests at once, of so many bytes of pixels; the earliest arrival first.

Permits are asked for by visual servers, for requests. Pure: whoever waits is told to ask again after every change.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from mmserve.cache_server.entries import Lease
from mmserve.runtime.byte_budget import ByteBudget


class Claim(NamedTuple):
    """A request in line. The earliest arrival comes first, whenever it was asked for."""

    arrival_s: float
    lease: Lease
    nbytes: int


class DecodePermits:
    """``max_requests`` 0: as many as the budget of pixels lets."""

    def __init__(self, max_requests: int, pixel_nbytes: int) -> None:
        self._max_requests = max_requests
        self.pixels = ByteBudget(pixel_nbytes)
        self.peak = 0
        self._held: dict[Lease, int] = {}
        self._line: list[Claim] = []
        self._following: Claim | None = None
        """Told that its turn begins when the only one held ends; of the same owner as that one."""

    @property
    def num_held(self) -> int:
        return len(self._held)

    @property
    def num_waiting(self) -> int:
        return len(self._line) + (self._following is not None)

    def ask(self, claim: Claim) -> None:
        """Into the line, unless it is there or its turn has come."""
        if not self.is_known(claim.lease):
            insort(self._line, claim)

    def has_come(self, lease: Lease) -> bool:
        """Lets the first in line begin, as many as may; is ``lease`` among those who have?"""
        while self._line and self._may_begin(self._line[0].nbytes):
            self._begin(self._line.pop(0))
        return lease in self._held

    def follows(self, lease: Lease) -> bool:
        """Is it first in line, and the only turn held its owner's too? Then it begins with the end of that turn, which
        its owner sees before anybody here: nothing stands still while word of it goes round."""
        alone = [held.owner for held in self._held] == [lease.owner]
        if alone and self._following is None and self._line and self._line[0].lease == lease:
            self._following = self._line.pop(0)
        return self._following is not None and self._following.lease == lease

    def is_known(self, lease: Lease) -> bool:
        """In line, or at its turn?"""
        return lease in self._held or any(claim.lease == lease for claim in self._waiting())

    def end(self, lease: Lease) -> bool:
        """Its pixels are the encoder's, or it wants nothing any more. Was there anything to end?"""
        if lease in self._held:
            self.pixels.give(self._held.pop(lease))
            following, self._following = self._following, None
            if following is not None:
                self._begin(following)
            return True
        known = self.is_known(lease)
        self._line = [claim for claim in self._line if claim.lease != lease]
        if self._following is not None and self._following.lease == lease:
            self._following = None
        return known

    def drop_owner(self, owner: str) -> None:
        """The visual server is gone, and its pixels with it."""
        for lease in [*self._held, *(claim.lease for claim in self._waiting())]:
            if lease.owner == owner:
                self.end(lease)

    def _waiting(self) -> list[Claim]:
        return self._line if self._following is None else [self._following, *self._line]

    def _begin(self, claim: Claim) -> None:
        self._held[claim.lease] = claim.nbytes
        self.pixels.take(claim.nbytes)
        self.peak = max(self.peak, len(self._held))

    def _may_begin(self, nbytes: int) -> bool:
        """One that is larger than the whole budget, which its HTTP worker should have refused, runs alone."""
        if self._following is not None:
            return False
        if self._max_requests and len(self._held) >= self._max_requests:
            return False
        return self.pixels.fits(nbytes) or not self._held
