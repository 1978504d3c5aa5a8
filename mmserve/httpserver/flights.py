"""Requests under way, each a task of its own that outlives its connection until everything is given back.

Knows when to start, cancel and await them; not what they do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from mmserve.errors import MmserveError, Unavailable
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.delta_stream import DeltaStream
from mmserve.metrics.client import MetricsClient

Generate = Callable[[GenerateCall, DeltaStream], Awaitable[None]]

logger = logging.getLogger(__name__)


class Flight:
    """One request under way. ``deltas`` is its answer; the connection calls ``leave`` when it is done with it."""

    def __init__(self, generate: Generate, call: GenerateCall, metrics: MetricsClient) -> None:
        self.deltas = DeltaStream(call.n)
        self.call = call
        self._metrics = metrics
        self._cancelled = False
        self.task = asyncio.create_task(self._run(generate), name=f"request {call.request_id}")

    def leave(self) -> None:
        """The client is gone: abort, unless the answer was complete. Harmless at any time, any number of times."""
        if not self.deltas.complete and not self._cancelled:
            self._metrics.add("requests_aborted", 1)
            self.cancel()

    def cancel(self) -> None:
        """Cancel once: cleanup that is on its way is never cut short by a second reason to stop."""
        if not self._cancelled:
            self._cancelled = True
            self.task.cancel()

    async def _run(self, generate: Generate) -> None:
        try:
            await generate(self.call, self.deltas)
        except asyncio.CancelledError:
            self.deltas.fail(Unavailable("the server is shutting down", retry_after_s=5.0))
        except Exception as error:  # noqa: BLE001 - the request boundary: one bad request never ends the worker
            self.deltas.fail(self._as_client_error(error))

    def _as_client_error(self, error: Exception) -> MmserveError:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, MmserveError):
            return error
        logger.error("request %s failed", self.call.request_id, exc_info=error)
        return MmserveError("internal error")


class Flights:
    """All requests of this worker that still hold anything."""

    def __init__(self, generate: Generate, metrics: MetricsClient) -> None:
        self._generate = generate
        self._metrics = metrics
        self._flights: dict[asyncio.Task[None], Flight] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def start(self, call: GenerateCall) -> Flight:
        flight = Flight(self._generate, call, self._metrics)
        self._flights[flight.task] = flight
        flight.task.add_done_callback(self._flights.pop)
        return flight

    async def finish(self, timeout_s: float) -> None:
        """Let live requests end within ``timeout_s``, then abort the rest and wait until they let go."""
        if self._flights:
            await asyncio.wait(list(self._flights), timeout=timeout_s)
        for flight in list(self._flights.values()):
            flight.cancel()
        if self._flights:
            await asyncio.wait(list(self._flights))
