"""Requests under way, each a task of its own that outlives its connection until everything is given back.

Knows when to start, cancel and await them; not what they do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.request.resources import RequestResources
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.errors import MmserveError, Unavailable

Generate = Callable[[GenerateCall, DeltaStream, RequestResources], Coroutine[Any, Any, None]]

_LETTING_GO_S = 5.0
"""At the end of the process; what is held longer than this ends with the process's connections."""

logger = logging.getLogger(__name__)


class RequestTask:
    """One request under way. ``deltas`` is its answer; the connection calls ``leave`` when it is done with it.

    Owns ``holdings``, and releases them when the task has ended.
    """

    def __init__(
        self, generate: Generate, call: GenerateCall, holdings: RequestResources, metrics: MetricsClient
    ) -> None:
        self.deltas = DeltaStream(call.n)
        self.call = replace(call, messages=(), media=())
        """What rendering needs; images as the client sent them are kept by no one but ``generate``."""
        self._metrics = metrics
        self._holdings = holdings
        self._cancelled = False
        self.task = asyncio.create_task(generate(call, self.deltas, holdings), name=f"request {call.request_id}")
        self.task.add_done_callback(self._end)

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

    def _end(self, task: asyncio.Task[None]) -> None:
        """The request boundary: whatever ended one request becomes its answer and never ends the worker."""
        self._holdings.release()
        if task.cancelled():
            self.deltas.fail(Unavailable("the server is shutting down", retry_after_s=5.0))
        elif (error := task.exception()) is not None:
            self.deltas.fail(self._as_client_error(error))

    def _as_client_error(self, error: BaseException) -> MmserveError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, MmserveError):
            return error
        logger.error("request %s failed", self.call.request_id, exc_info=error)
        return MmserveError("internal error")


class RequestTasks:
    """All requests of this worker that still hold anything."""

    def __init__(self, generate: Generate, metrics: MetricsClient) -> None:
        self._generate = generate
        self._metrics = metrics
        self._flights: dict[asyncio.Task[None], RequestTask] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def start(self, call: GenerateCall, holdings: RequestResources) -> RequestTask:
        flight = RequestTask(self._generate, call, holdings, self._metrics)
        self._flights[flight.task] = flight
        flight.task.add_done_callback(self._flights.pop)
        return flight

    async def finish(self, timeout_s: float) -> None:
        """Let live requests end within ``timeout_s``, then abort the rest and give them a moment to let go."""
        if self._flights:
            await asyncio.wait(list(self._flights), timeout=timeout_s)
        for flight in list(self._flights.values()):
            flight.cancel()
        if self._flights:
            await asyncio.wait(list(self._flights), timeout=_LETTING_GO_S)
