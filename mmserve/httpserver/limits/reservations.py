"""Bytes of this worker's memory that requests reserve before they bring them in; who must wait goes in turn.

Knows sizes and budgets, not what the bytes are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from types import TracebackType

from mmserve.metrics.client import MetricsClient
from mmserve.runtime.byte_budget import MIB, ByteBudget
from mmserve.runtime.errors import TooLarge, Unavailable

_RETRY_AFTER_S = 5.0
logger = logging.getLogger(__name__)


class Reservation:
    """So many bytes of a budget, until ``release`` or the end of the ``with``; again does no harm."""

    def __init__(self, reservations: Reservations, nbytes: int) -> None:
        self._reservations = reservations
        self.nbytes = nbytes

    def shrink(self, nbytes: int) -> None:
        """What is held is smaller now: its next form, say. Never grows."""
        given, self.nbytes = max(0, self.nbytes - nbytes), min(self.nbytes, nbytes)
        self._reservations.give(given)

    def release(self) -> None:
        self.shrink(0)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        """A bug of ours when there is anything left; counted, and put right."""
        if self.nbytes:
            self._reservations.leaked(self)


class Reservations:
    """One budget of a worker, used from its event loop only. ``name`` is its label in metrics and ``flag`` its option's
    name, for errors. Up to ``short_nbytes`` are counted but wait for nothing."""

    def __init__(
        self,
        name: str,
        flag: str,
        limit_nbytes: int,
        metrics: MetricsClient,
        patience_s: float,
        short_nbytes: int = 0,
    ) -> None:
        self.name = name
        self.short_nbytes = short_nbytes
        self._flag = flag
        self._budget = ByteBudget(limit_nbytes)
        self._metrics = metrics
        self._patience_s = patience_s
        self._waiting: deque[tuple[int, asyncio.Future[Reservation]]] = deque()

    async def reserve(self, nbytes: int) -> Reservation:
        """First come first served. Raises TooLarge (never) or Unavailable (not within the time a request may wait)."""
        if nbytes > self._budget.limit_nbytes:
            raise TooLarge(
                f"the request needs {nbytes / MIB:.1f} MiB at once, more than the "
                f"{self._budget.limit_nbytes / MIB:g} MiB of this worker's share ({self._flag})"
            )
        if not self.must_wait(nbytes):
            return self._take(nbytes)
        granted: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._waiting.append((nbytes, granted))
        reservation = None
        try:
            async with asyncio.timeout(self._patience_s):
                reservation = await granted
            return reservation
        except TimeoutError:
            raise Unavailable(
                f"no memory became free for this request within {self._patience_s:g} s ({self._flag})",
                retry_after_s=_RETRY_AFTER_S,
            ) from None
        finally:
            if reservation is None:
                self._leave(granted)

    def must_wait(self, nbytes: int) -> bool:
        """Would ``reserve`` wait now?"""
        return nbytes > self.short_nbytes and (bool(self._waiting) or not self._budget.fits(nbytes))

    def give(self, nbytes: int) -> None:
        """Back from a reservation; whoever is first in line may go on."""
        self._budget.give(nbytes)
        self._grant()

    def leaked(self, reservation: Reservation) -> None:
        logger.error("%d bytes of %s were never given back", reservation.nbytes, self.name)
        self._metrics.add("mm_lease_leaks", 1)
        reservation.release()

    def report(self) -> None:
        """Gauges of this budget."""
        self._metrics.add_budget(self.name, self._budget)

    @property
    def used_nbytes(self) -> int:
        return self._budget.used_nbytes

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def _take(self, nbytes: int) -> Reservation:
        self._budget.take(nbytes)
        return Reservation(self, nbytes)

    def _grant(self) -> None:
        while self._waiting and self._budget.fits(self._waiting[0][0]):
            nbytes, granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(self._take(nbytes))

    def _leave(self, granted: asyncio.Future[Reservation]) -> None:
        """Whoever goes without, be it at the very moment of the grant, lets the next in line look."""
        if granted.done() and not granted.cancelled():
            granted.result().release()
        self._waiting = deque(place for place in self._waiting if place[1] is not granted)
        self._grant()
