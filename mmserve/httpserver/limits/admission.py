"""Admission of requests by the server's phase and the number in flight. Owns both for this worker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from mmserve.messages.reply import ServerPhase
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.errors import Overloaded, Unavailable

_RETRY_AFTER_S = {"starting": 5.0, "loading": 5.0, "restarting": 2.0, "draining": 5.0}
_RETRY_WHEN_FULL_S = 1.0


class AdmissionControl:
    """Admits at most ``limit`` requests at once, and none unless the server is ready and not draining."""

    def __init__(self, limit: int, metrics: MetricsClient) -> None:
        self._limit = limit
        self._metrics = metrics
        self._draining = False
        self.phase = ServerPhase(phase="starting", ready=False)
        """The last phase that the supervisor sent; set by the reader of the worker's inbox."""
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ready(self) -> bool:
        """True if a request could succeed now."""
        return self.phase.ready and not self._draining

    @property
    def phase_name(self) -> str:
        return "draining" if self._draining else self.phase.phase

    def drain(self) -> None:
        """Refuse all requests from now on."""
        self._draining = True

    async def idle(self) -> None:
        """Wait until no request is in flight."""
        await self._idle.wait()

    def check(self) -> None:
        """Raise Unavailable or Overloaded if ``admit`` would refuse a request now."""
        if not self.ready:
            self._count_rejection(self.phase_name)
            detail = f": {self.phase.detail}" if self.phase.detail else ""
            raise Unavailable(
                f"the server is {self.phase_name}{detail}", retry_after_s=_RETRY_AFTER_S.get(self.phase_name, 2.0)
            )
        if self.in_flight >= self._limit:
            self._count_rejection("queue_full")
            raise Overloaded(f"{self._limit} requests are in flight already", retry_after_s=_RETRY_WHEN_FULL_S)

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count one request as in flight until the context ends. Raises Unavailable or Overloaded."""
        self.check()
        self._add_in_flight(1)
        try:
            yield
        finally:
            self._add_in_flight(-1)

    def _add_in_flight(self, change: int) -> None:
        self.in_flight += change
        self._idle.clear() if self.in_flight else self._idle.set()
        self._metrics.add("num_requests_in_flight", self.in_flight)

    def _count_rejection(self, reason: str) -> None:
        self._metrics.add("admission_rejections", 1, reason)
