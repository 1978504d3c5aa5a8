"""One record for each request that has ended: the time of each stage, tokens, how it ended. For --trace-requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.stage_times import STAGES, StageTimes

logger = logging.getLogger("mmserve.trace")


@dataclass(frozen=True)
class TraceRecord:
    """``outcome``: the finish reasons, ``aborted``, or the kind of the error. Times are in seconds."""

    call: GenerateCall
    """Without messages and images."""
    route: str
    num_images: int
    prompt_tokens: int
    completion_tokens: int
    outcome: str
    total_s: float
    stages: Mapping[str, float]


TraceSink = Callable[[TraceRecord], None]


class RequestTrace:
    """Makes one record when both the request's task and its response have ended, and passes it to ``sink``."""

    def __init__(self, call: GenerateCall, route: str, num_images: int, times: StageTimes, sink: TraceSink) -> None:
        self._call = call
        self._route = route
        self._num_images = num_images
        self._times = times
        self._sink = sink
        self._times["body"] = time.monotonic() - call.arrival_s
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
        self._times["send"] = max(0.0, self._sent_s - generated_s)
        usage = deltas.usage
        record = TraceRecord(
            self._call,
            self._route,
            self._num_images,
            usage.prompt_tokens,
            usage.completion_tokens,
            _outcome(deltas, aborted),
            max(self._sent_s, generated_s) - self._call.arrival_s,
            self._times,
        )
        self._sink(record)


def log_trace(record: TraceRecord) -> None:
    """Write the record as one log line; with --log-format json each stage is a field of its own."""
    stages = {stage: record.stages[stage] for stage in STAGES if stage in record.stages}
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


def _outcome(deltas: DeltaStream, aborted: bool) -> str:
    if aborted:
        return "aborted"
    if deltas.failure is not None:
        return deltas.failure.kind
    return ",".join(deltas.finish_reasons)
