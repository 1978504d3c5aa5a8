"""Runs of a load against one or several servers, in turn, so that a drift of the machine's speed affects all alike."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mmserve.cli.bench import plan
from mmserve.cli.bench.client import Record, run, run_at
from mmserve.cli.bench.figures import figures, median_run
from mmserve.cli.bench.lateness import why_late
from mmserve.cli.bench.probe import Target
from mmserve.cli.bench.report import Run

_MAX_FAILED_SHARE = 0.05
"""A sweep ends at a level where more requests fail."""


@dataclass(frozen=True)
class Level:
    """Requests a second in an open loop, or clients in a closed one. ``max_concurrency``: of an open loop."""

    rate: float | None = None
    concurrency: int | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None

    @property
    def name(self) -> str:
        if self.rate is not None:
            return f"{self.rate:g} requests/s"
        return f"{self.concurrency} client{'' if self.concurrency == 1 else 's'}"

    @property
    def size(self) -> float:
        return float(self.concurrency or 0) if self.rate is None else self.rate


@dataclass(frozen=True)
class Settings:
    """``slo_ms``: limits of a good answer. ``repeats``: runs of each level, of which medians are reported."""

    repeats: int = 1
    seed: int = 0
    timeout_s: float = 600.0
    slo_ms: Mapping[str, float] | None = None


class _Result(NamedTuple):
    """Of one run. ``cpu_share``: of its time, in which this client's thread computed."""

    records: Sequence[Record]
    wall_s: float
    cpu_share: float


def measure(
    targets: Mapping[Target, plan.Load],
    levels: Sequence[Level],
    settings: Settings,
    on_run: Callable[[Target, Level, int], object] = lambda target, level, repeat: None,
    on_end: Callable[[], object] = lambda: None,
) -> list[Run]:
    """Every level, from the first on, until more than 5 % of a level's requests fail.

    ``on_run`` is called before a run, with repeat 0 for a warm-up, ``on_end`` after each of its requests.
    """
    found: list[Run] = []
    for target, load in targets.items():
        on_run(target, levels[0], 0)
        warm_up = replace(load, requests=min(load.requests, 4))
        _once(target, warm_up, Level(concurrency=4), settings, -1, lambda: None)
    for place, level in enumerate(levels):
        runs: dict[Target, list[_Result]] = {target: [] for target in targets}
        for repeat in range(1, settings.repeats + 1):
            for target, load in targets.items():
                on_run(target, level, repeat)
                number = place * settings.repeats + repeat
                runs[target].append(_once(target, load, level, settings, number, on_end))
        found += [
            _reported(target, level, results, settings, several=len(targets) > 1) for target, results in runs.items()
        ]
        if any(
            one.figures["failed"] > _MAX_FAILED_SHARE * one.figures["num_prompts"] for one in found[-len(targets) :]
        ):
            break
    return found


def _once(
    target: Target, load: plan.Load, level: Level, settings: Settings, number: int, on_end: Callable[[], object]
) -> _Result:
    """``number``: of the run. Each has new prompts: a server may still know those of the last."""
    seed = settings.seed * 1000 + number
    bodies = plan.bodies(load, target.model, seed)
    gc.collect()
    gc.freeze()
    try:
        if level.rate is None:
            sent = run(target.url, bodies, level.concurrency or 1, settings.timeout_s, target.api_key, on_end)
        else:
            times = plan.arrivals(load.requests, level.rate, level.burstiness, seed)
            sent = run_at(target.url, bodies, times, level.max_concurrency, settings.timeout_s, target.api_key, on_end)
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        records, wall_s = asyncio.run(sent)
        cpu_share = (time.thread_time() - began_cpu_s) / (time.perf_counter() - began_s)
        return _Result(records, wall_s, cpu_share)
    finally:
        gc.unfreeze()


def _reported(target: Target, level: Level, results: Sequence[_Result], settings: Settings, *, several: bool) -> Run:
    label = f"{target.name}, {level.name}" if several else level.name
    found = median_run([figures(records, wall_s, settings.slo_ms or {}, share) for records, wall_s, share in results])
    size = level.size if math.isfinite(level.size) else 0.0
    return Run(label, target.name, size, found, results[-1].records, why_late(found))
