"""One record for each request that has ended: the time of each stage, tokens, how it ended. For --trace-requests and
--otlp-traces-endpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.stage_times import STAGES, StageTimes

logger = logging.getLogger("mmserve.trace")


@dataclass(frozen=True)
class TraceRecord:
    """Times are in seconds."""

    call: GenerateCall
    """Without messages and images."""
    route: str
    num_images: int
    prompt_tokens: int
    completion_tokens: int
    finish_reasons: tuple[str, ...]
    """Of the choices that have finished."""
    error_type: str | None
    """``aborted``, the kind of the error, or None."""
    total_s: float
    times: StageTimes
    traceparent: str = ""
    """The client's header: the span that its request is part of."""

    @property
    def outcome(self) -> str:
        return self.error_type if self.error_type is not None else ",".join(self.finish_reasons)


TraceSink = Callable[[TraceRecord], None]


def each_of(sinks: Sequence[TraceSink]) -> TraceSink | None:
    """One sink for all of them; None if there are none."""
    if not sinks:
        return None

    def pass_on(record: TraceRecord) -> None:
        for sink in sinks:
            sink(record)

    return pass_on


class RequestTrace:
    """Makes one record when both the request's task and its response have ended, and passes it to ``sink``.

    ``times``: of the request's stages, with those that have ended.
    """

    def __init__(
        self, call: GenerateCall, route: str, num_images: int, times: StageTimes, sink: TraceSink, traceparent: str
    ) -> None:
        self._call = call
        self._traceparent = traceparent
        self._route = route
        self._num_images = num_images
        self._times = times
        self._sink = sink
        self._generated: tuple[float, DeltaStream, bool] | None = None
        self._sent_s: float | None = None

    def task_ended(self, deltas: DeltaStream, aborted: bool) -> None:
        """The task has ended; its response may still be sent."""
        self._generated = (time.monotonic(), deltas, aborted)
        self._finish()

    def response_ended(self) -> None:
        """The last byte was handed to the connection, or the client is gone. Idempotent."""
        if self._sent_s is None:
            self._sent_s = time.monotonic()
            self._finish()

    def _finish(self) -> None:
        if self._generated is None or self._sent_s is None:
            return
        generated_s, deltas, aborted = self._generated
        self._times.add("send", max(0.0, self._sent_s - generated_s))
        usage = deltas.usage
        record = TraceRecord(
            self._call,
            self._route,
            self._num_images,
            usage.prompt_tokens,
            usage.completion_tokens,
            tuple(deltas.finish_reasons),
            _error_type(deltas, aborted),
            max(self._sent_s, generated_s) - self._call.arrival_s,
            self._times,
            self._traceparent,
        )
        self._sink(record)


def log_trace(record: TraceRecord) -> None:
    """Write the record as one log line; with --log-format json each stage is a field of its own."""
    seconds_of = record.times.seconds
    stages = {stage: seconds_of[stage] for stage in STAGES if stage in seconds_of}
    shown = " ".join(f"{stage}={1e3 * seconds:.1f}" for stage, seconds in stages.items())
    logger.info(
        "request %s: %s in %.1f ms, images=%d prompt_tokens=%d completion_tokens=%d; ms: %s",
        record.call.request_id,
        record.outcome,
        1e3 * record.total_s,
        record.num_images,
        record.prompt_tokens,
        record.completion_tokens,
        shown,
        extra={
            "fields": {
                "request": record.call.request_id,
                "route": record.route,
                "model": record.call.model,
                "outcome": record.outcome,
                "total_ms": round(1e3 * record.total_s, 3),
                "images": record.num_images,
                "prompt_tokens": record.prompt_tokens,
                "completion_tokens": record.completion_tokens,
                "stages_ms": {stage: round(1e3 * seconds, 3) for stage, seconds in stages.items()},
            }
        },
    )


def _error_type(deltas: DeltaStream, aborted: bool) -> str | None:
    if aborted:
        return "aborted"
    return None if deltas.failure is None else deltas.failure.kind
