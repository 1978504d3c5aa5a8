"""Seconds that each stage of the current request took, for the request's trace. The steps of the request path record
them; a context variable finds the request, so that no step has to be told of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context, ContextVar

StageTimes = dict[str, float]
STAGES = (
    "body",
    "fetch",
    "hash",
    "alloc",
    "write",
    "prompt",
    "turn",
    "image_decode",
    "encode",
    "queue",
    "prefill",
    "decode",
    "send",
)
"""All stages in the order of a request. ``alloc`` contains ``write``. ``fetch`` and ``hash`` are sums over images."""

_current: ContextVar[StageTimes | None] = ContextVar("stage_times", default=None)


def collect_in(context: Context) -> StageTimes:
    """The times that code in this context will record."""
    times: StageTimes = {}
    context.run(_current.set, times)
    return times


def record(stage: str, seconds: float) -> None:
    """Add to the current request's time of a stage. Does nothing outside a request that is traced."""
    if (times := _current.get()) is not None:
        times[stage] = times.get(stage, 0.0) + seconds


def record_engine(times_of_choice: Mapping[str, float]) -> None:
    """The stages of one choice in the visual server and the engine. Of several choices the longest time counts."""
    if times_of_choice and (times := _current.get()) is not None:
        for stage, seconds in times_of_choice.items():
            times[stage] = max(times.get(stage, 0.0), seconds)
