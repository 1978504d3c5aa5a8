"""Seconds that each stage of the current request took, for the request's trace. The steps of the request path record
them; a context variable finds the request, so that no step has to be told of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import Context, ContextVar
from dataclasses import dataclass, field

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
ENGINE_STAGES = ("turn", "image_decode", "encode", "queue", "prefill", "decode")
"""Stages of the visual server and the engine. Each begins when the one before it ends."""


@dataclass
class StageTimes:
    """Of one request. Times at which stages ended are of the monotonic clock."""

    seconds: dict[str, float] = field(default_factory=dict)
    ended_s: dict[str, float] = field(default_factory=dict)
    """Of stages of the engine: when the HTTP worker had its last reply."""

    def add(self, stage: str, seconds: float) -> None:
        """The stage has ended now. Of a stage that is run several times the sum counts."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self.ended_s[stage] = time.monotonic()

    def add_longest(self, stage: str, seconds: float) -> None:
        """The stage has ended now. Of a stage that is run several times at once the longest counts."""
        self.seconds[stage] = max(self.seconds.get(stage, 0.0), seconds)
        self.ended_s[stage] = time.monotonic()


_current: ContextVar[StageTimes | None] = ContextVar("stage_times", default=None)


def collect_in(context: Context) -> StageTimes:
    """The times that code in this context will record."""
    times = StageTimes()
    context.run(_current.set, times)
    return times


def record(stage: str, seconds: float) -> None:
    """Add to the current request's time of a stage. Does nothing outside a request that is traced."""
    if (times := _current.get()) is not None:
        times.add(stage, seconds)


def record_engine(times_of_choice: Mapping[str, float]) -> None:
    """The stages of one choice in the visual server and the engine. Of several choices the longest time counts."""
    if times_of_choice and (times := _current.get()) is not None:
        for stage, seconds in times_of_choice.items():
            times.add_longest(stage, seconds)
