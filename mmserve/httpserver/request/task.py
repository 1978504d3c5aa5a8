"""Requests as asyncio tasks. A request's task outlives its connection until everything it held is released.

At the log level DEBUG each request has two lines, one at its start and one at its end. Both name the request's id: the
``id`` of the response's body without its prefix, and the beginning of the ids that the engine uses for its choices.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from itertools import islice
from typing import Any

from msgspec.structs import replace

from mmserve.httpserver import stage_times
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.output.render_turns import RenderTurns
from mmserve.httpserver.request.resources import RequestResources
from mmserve.httpserver.request.tracing.trace import RequestTrace, TraceSink
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.errors import DeadlineExceeded, MmserveError, Overloaded, Unavailable
from mmserve.runtime.failures import drop_tracebacks, order_for_client, without_references
from mmserve.runtime.logs import log
from mmserve.runtime.retry_after import AFTER_SHUTDOWN_S
from mmserve.runtime.shortage import shortage_of

Generate = Callable[[GenerateCall, DeltaStream, RequestResources], Coroutine[Any, Any, None]]

_CLEANUP_TIMEOUT_S = 5.0
"""Time for cancelled requests to release what they hold, at the end of the process."""

logger = logging.getLogger(__name__)


class RequestTask:
    """One request under way. ``deltas`` is its answer; the connection calls ``abort`` when it no longer reads it.

    Owns ``resources`` and releases them when the task has ended. ``route``: the path of the protocol's route.
    ``traceparent``: the client's header of that name, or empty.
    ``timeout_s``: the server's limit from arrival to the end of the answer; the client's own may be shorter.
    """

    def __init__(
        self,
        generate: Generate,
        call: GenerateCall,
        resources: RequestResources,
        route: str,
        metrics: MetricsClient,
        turns: RenderTurns,
        timeout_s: float | None = None,
        trace_sink: TraceSink | None = None,
        traceparent: str = "",
    ) -> None:
        self.deltas = DeltaStream(call.n, turns, resources.answer_memory().resize, call.num_prompts)
        self.call = replace(call, prompts=(), media=())
        """The call without its content: only ``generate`` may keep the images that came with the request."""
        self.num_images = len(call.media)
        self._metrics = metrics
        self._resources = resources
        self._cancelled = False
        self._aborted = False
        self._deadline = self._call_at_deadline(timeout_s)
        logger.debug(
            "request %s started: %s, images=%d, choices=%d, stream=%s",
            call.request_id,
            route,
            len(call.media),
            call.num_choices,
            call.stream,
        )
        context = _context_of(call)
        self.times = stage_times.collect_in(context) if call.timed or trace_sink is not None else None
        """Of the stages that have ended, if anybody wants to know them."""
        self._trace: RequestTrace | None = None
        if self.times is not None:
            self.times.add("body", time.monotonic() - call.arrival_s)
            if trace_sink is not None:
                self._trace = RequestTrace(self.call, route, len(call.media), self.times, trace_sink, traceparent)
        self.task = asyncio.create_task(
            generate(call, self.deltas, resources), name=f"request {call.request_id}", context=context
        )
        self.task.add_done_callback(self._on_done)

    @property
    def images_are_read(self) -> bool:
        """True once all images that come with the request are there."""
        return self._resources.images_are_read

    def abort(self) -> None:
        """Nobody reads the answer any more: drop it, and cancel the request unless it is complete. Idempotent."""
        if not self.deltas.complete and not self._cancelled:
            self._metrics.add("requests_aborted", 1)
            self._aborted = True
            self.cancel()
        self.deltas.close()

    def response_ended(self) -> None:
        """The response has been sent, or nobody reads it any more. Idempotent."""
        if self._trace is not None:
            self._trace.response_ended()

    def _call_at_deadline(self, server_timeout_s: float | None) -> asyncio.TimerHandle | None:
        limits = [limit for limit in (self.call.timeout_s, server_timeout_s) if limit is not None]
        if not limits:
            return None
        left_s = self.call.arrival_s + min(limits) - time.monotonic()
        return asyncio.get_running_loop().call_later(max(0.0, left_s), self._time_out, min(limits))

    def _time_out(self, timeout_s: float) -> None:
        """End the answer with an error at once; the task then ends its sequence and its leases."""
        if not self.deltas.complete and not self._cancelled:
            self._metrics.add("requests_timed_out", 1)
            self.deltas.fail(DeadlineExceeded(f"the request was not answered within {timeout_s:g} s"))
            self.cancel()

    def cancel(self) -> None:
        """Cancel the task. Only once: a second cancellation would interrupt the cleanup that the first one started."""
        if not self._cancelled:
            self._cancelled = True
            self.task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        """The request boundary: an exception ends the request's answer, not the worker."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._resources.release()
        failure = self._failure_of(task)
        if failure is not None:
            self.deltas.fail(failure)
        self._log_end()
        if self._trace is not None:
            self._trace.task_ended(self.deltas, self._aborted)

    def _log_end(self) -> None:
        if not logger.isEnabledFor(logging.DEBUG):
            return
        if self._aborted:
            outcome = "aborted, its answer is no longer read"
        elif (failure := self.deltas.failure) is not None:
            outcome = f"{type(failure).__name__}: {failure.message}"
        else:
            outcome = ", ".join(self.deltas.finish_reasons)
        seconds = time.monotonic() - self.call.arrival_s
        logger.debug("request %s ended %.3f s after its arrival: %s", self.call.request_id, seconds, outcome)

    def _failure_of(self, task: asyncio.Task[None]) -> MmserveError | None:
        """The client's error for a task that has ended, or None. Drops tracebacks, which keep the request's images."""
        try:
            task.result()
            return None
        except asyncio.CancelledError as error:
            drop_tracebacks(error)
            return _shutting_down()
        except BaseException as error:  # noqa: BLE001 - the request boundary
            failure = self._logged(error)
            drop_tracebacks(error)
            return failure

    def _logged(self, error: BaseException) -> MmserveError:
        """Log what the client is not told: bugs with their tracebacks, and all errors but the one it sees."""
        shown, *others = order_for_client(error)
        short = None if isinstance(shown, MmserveError) else shortage_of(shown)
        if short is not None:
            logger.warning("request %s failed: %s", self.call.request_id, short.message)
            return short
        for one in (shown, *others):
            if not isinstance(one, MmserveError):
                logger.error("request %s failed", self.call.request_id, exc_info=one)
            elif one is not shown:
                # Messages about the server's state quote nothing that the client wrote; others may.
                about = f": {one.message}" if isinstance(one, Overloaded | Unavailable) else ""
                logger.info("request %s also failed: %s%s", self.call.request_id, type(one).__name__, about)
                logger.debug("request %s: %s", self.call.request_id, one.message)
        return without_references(shown) if isinstance(shown, MmserveError) else MmserveError("internal error")


class RequestTasks:
    """All tasks of this worker's requests that have not ended.

    ``timeout_s``: limit for each; None: no limit. ``trace_sink`` gets a record of each request that has ended.
    """

    def __init__(
        self,
        generate: Generate,
        metrics: MetricsClient,
        *,
        timeout_s: float | None = None,
        trace_sink: TraceSink | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._trace_sink = trace_sink
        self._generate = generate
        self._metrics = metrics
        self._turns = RenderTurns()
        self._closed = False
        self._running: dict[asyncio.Task[None], RequestTask] = {}

    def __len__(self) -> int:
        return len(self._running)

    def oldest(self, limit: int) -> list[RequestTask]:
        """At most ``limit`` requests that have no complete answer yet, in the order in which they were started."""
        return list(islice((task for task in self._running.values() if not task.deltas.complete), limit))

    def start(self, call: GenerateCall, resources: RequestResources, route: str, traceparent: str = "") -> RequestTask:
        """Start a request's task, which takes over ``resources``. Raises Unavailable after ``close``."""
        if self._closed:
            raise _shutting_down()
        started = RequestTask(
            self._generate,
            call,
            resources,
            route,
            self._metrics,
            self._turns,
            self._timeout_s,
            self._trace_sink,
            traceparent,
        )
        self._running[started.task] = started
        started.task.add_done_callback(self._running.pop)
        return started

    async def close(self) -> None:
        """Accept no more requests, cancel those that are left, and wait for their cleanup."""
        self._closed = True
        for request_task in list(self._running.values()):
            request_task.cancel()
        if self._running:
            await asyncio.wait(list(self._running), timeout=_CLEANUP_TIMEOUT_S)


def _context_of(call: GenerateCall) -> Context:
    """The context of a request's task: names the request in its log lines."""
    context = copy_context()
    context.run(log.request_id.set, call.request_id)
    return context


def _shutting_down() -> Unavailable:
    return Unavailable("the server is shutting down", retry_after_s=AFTER_SHUTDOWN_S)
