"""Admission of requests by the server's phase and the number in flight. Owns both for this worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from mmserve.messages.reply import ServerPhase
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.errors import Overloaded, Unavailable
from mmserve.runtime.retry_after import AFTER_SHUTDOWN_S, Clock, RestartTimes, Turnover

_RETRY_WHEN_FULL_S = 1.0
"""Before any request has ended."""


class AdmissionControl:
    """Admits at most ``limit`` requests at once, and none unless the server is ready and not draining."""

    def __init__(self, limit: int, metrics: MetricsClient, now: Clock = time.monotonic) -> None:
        self._limit = limit
        self._metrics = metrics
        self._draining = False
        self._phase = ServerPhase(phase="starting", ready=False)
        self._restarts = RestartTimes(now=now)
        self._turnover = Turnover(_RETRY_WHEN_FULL_S, now)
        self.in_flight = 0
        self.was_ready = asyncio.Event()
        """Set when the server has been ready."""
        self._idle, self._admitted = asyncio.Event(), asyncio.Event()
        self._idle.set()

    @property
    def phase(self) -> ServerPhase:
        """The last phase that the supervisor sent; set by the reader of the worker's inbox."""
        return self._phase

    @phase.setter
    def phase(self, phase: ServerPhase) -> None:
        self._phase = phase
        self._restarts.observe(phase.ready)
        if phase.ready:
            self.was_ready.set()

    @property
    def ready(self) -> bool:
        """True if a request could succeed now."""
        return self.phase.ready and not self._draining

    @property
    def _goes_away(self) -> bool:
        return self._draining or self.phase.phase == "draining"

    @property
    def phase_name(self) -> str:
        return "draining" if self._draining else self.phase.phase

    def drain(self) -> None:
        """Refuse all requests from now on."""
        self._draining = True

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    async def admitted(self) -> None:
        """Wait until a request has been admitted since the last call. For one caller."""
        await self._admitted.wait()
        self._admitted.clear()

    def check(self) -> None:
        """Raise Unavailable or Overloaded if ``admit`` would refuse a request now."""
        if not self.ready:
            self._count_rejection(self.phase_name)
            detail = f": {self.phase.detail}" if self.phase.detail else ""
            retry_after_s = AFTER_SHUTDOWN_S if self._goes_away else self._restarts.seconds_until_ready()
            raise Unavailable(f"the server is {self.phase_name}{detail}", retry_after_s=retry_after_s)
        if self.in_flight >= self._limit:
            self._count_rejection("queue_full")
            retry_after_s = self._turnover.seconds_until_free()
            raise Overloaded(f"{self._limit} requests are in flight already", retry_after_s=retry_after_s)

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count one request as in flight until the context ends. Raises Unavailable or Overloaded."""
        self.check()
        self._add_in_flight(1)
        self._admitted.set()
        try:
            yield
        finally:
            self._add_in_flight(-1)

    def _add_in_flight(self, change: int) -> None:
        self.in_flight += change
        self._turnover.hold(self.in_flight)
        self._idle.clear() if self.in_flight else self._idle.set()
        self._metrics.add("num_requests_in_flight", self.in_flight)

    def _count_rejection(self, reason: str) -> None:
        self._metrics.add("admission_rejections", 1, reason)
