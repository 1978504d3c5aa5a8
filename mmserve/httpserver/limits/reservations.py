"""Byte budgets of a worker: a request reserves memory before it reads data into it, and waits if there is none free."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from types import TracebackType

from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.byte_budget import MIB, ByteBudget
from mmserve.runtime.errors import TooLarge, Unavailable
from mmserve.runtime.retry_after import Clock, Turnover

_RETRY_AFTER_S = 5.0
"""Before any memory was given back."""
logger = logging.getLogger(__name__)


class Reservation:
    """``nbytes`` of a budget, held until ``release`` or the end of the ``with``."""

    def __init__(self, reservations: Reservations, nbytes: int) -> None:
        self._reservations = reservations
        self.nbytes = nbytes

    def shrink(self, nbytes: int) -> None:
        """Give back all but ``nbytes``. Has no effect if fewer are held."""
        returned, self.nbytes = max(0, self.nbytes - nbytes), min(self.nbytes, nbytes)
        self._reservations.give_back(returned)

    def resize(self, nbytes: int) -> None:
        """Hold ``nbytes`` in place of what is held. Never waits. Raises Unavailable if more do not fit now."""
        if nbytes > self.nbytes:
            self._reservations.take_more(nbytes - self.nbytes, nbytes)
            self.nbytes = nbytes
        else:
            self.shrink(nbytes)

    def release(self) -> None:
        """Give everything back. Idempotent."""
        self.shrink(0)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        """A reservation that was never released is a bug of this server: report and release it."""
        if self.nbytes:
            self._reservations.on_leak(self)


class Reservations:
    """One byte budget of a worker, granted first come, first served. Used from the event loop only.

    ``name`` is its label in metrics, ``flag`` the option that sets it, for error messages. Reservations of up to
    ``short_nbytes`` are counted but never wait.
    """

    def __init__(
        self,
        name: str,
        flag: str,
        limit_nbytes: int,
        metrics: MetricsClient,
        timeout_s: float,
        short_nbytes: int = 0,
        now: Clock = time.monotonic,
    ) -> None:
        self.name = name
        self.short_nbytes = short_nbytes
        self._flag = flag
        self._budget = ByteBudget(limit_nbytes)
        self._turnover = Turnover(_RETRY_AFTER_S, now)
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._queue: deque[tuple[int, asyncio.Future[Reservation]]] = deque()

    async def reserve(self, nbytes: int) -> Reservation:
        """Reserve ``nbytes``, waiting for them if needed.

        Raises TooLarge if they exceed the whole budget, Unavailable if they are not free within the timeout.
        """
        if nbytes > self._budget.limit_nbytes:
            raise TooLarge(
                f"the request needs {nbytes / MIB:.1f} MiB at once, more than the "
                f"{self._budget.limit_nbytes / MIB:g} MiB of this worker's share ({self._flag})"
            )
        if not self.must_wait(nbytes):
            return self._take(nbytes)
        granted: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._queue.append((nbytes, granted))
        reservation = None
        try:
            async with asyncio.timeout(self._timeout_s):
                reservation = await granted
            return reservation
        except TimeoutError:
            raise Unavailable(
                f"no memory became free for this request within {self._timeout_s:g} s ({self._flag})",
                retry_after_s=self._seconds_until_free(nbytes),
            ) from None
        finally:
            if reservation is None:
                self._withdraw(granted)

    def empty(self) -> Reservation:
        """A reservation of nothing, to be resized."""
        return self._take(0)

    def must_wait(self, nbytes: int) -> bool:
        """True if ``reserve`` would wait now."""
        return nbytes > self.short_nbytes and (bool(self._queue) or not self._budget.fits(nbytes))

    def take_more(self, more_nbytes: int, nbytes: int) -> None:
        """Count ``more_nbytes`` for a reservation that then has ``nbytes``, before all that wait: it holds memory that
        they wait for. Raises Unavailable if they do not fit and the reservation is not short."""
        if nbytes > self.short_nbytes and not self._budget.fits(more_nbytes):
            raise Unavailable(
                f"a request needs {nbytes / MIB:.1f} MiB, more memory than is free now ({self._flag})",
                retry_after_s=self._seconds_until_free(more_nbytes),
            )
        self._budget.take(more_nbytes)
        self._turnover.take(more_nbytes)

    def give_back(self, nbytes: int) -> None:
        """Return bytes of a reservation to the budget."""
        self._budget.give(nbytes)
        self._turnover.give(nbytes)
        self._grant()

    def on_leak(self, reservation: Reservation) -> None:
        logger.error("%d bytes of %s were never given back", reservation.nbytes, self.name)
        self._metrics.add("mm_lease_leaks", 1)
        reservation.release()

    def report(self) -> None:
        """Send this budget's gauges."""
        self._metrics.add_budget(self.name, self._budget)

    @property
    def used_nbytes(self) -> int:
        return self._budget.used_nbytes

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def _take(self, nbytes: int) -> Reservation:
        self._budget.take(nbytes)
        self._turnover.take(nbytes)
        return Reservation(self, nbytes)

    def _seconds_until_free(self, nbytes: int) -> float:
        """Estimate for ``nbytes`` behind all that wait now."""
        wanted_nbytes = nbytes + sum(waiting for waiting, granted in self._queue if not granted.done())
        missing_nbytes = self._budget.used_nbytes + wanted_nbytes - self._budget.limit_nbytes
        return self._turnover.seconds_until_free(max(0, missing_nbytes))

    def _grant(self) -> None:
        """Grant waiting reservations in order, as long as the first one fits."""
        while self._queue and self._budget.fits(self._queue[0][0]):
            nbytes, granted = self._queue.popleft()
            if not granted.done():
                granted.set_result(self._take(nbytes))

    def _withdraw(self, granted: asyncio.Future[Reservation]) -> None:
        """Remove a timed-out or cancelled waiter. It may have been granted in the same iteration of the event loop."""
        if granted.done() and not granted.cancelled():
            granted.result().release()
        self._queue = deque(entry for entry in self._queue if entry[1] is not granted)
        self._grant()
