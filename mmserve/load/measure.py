"""Runs of a load against one or several servers, in turn, so that a drift of the machine's speed affects all alike."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mmserve.load import plan
from mmserve.load.client import Record, run, run_at
from mmserve.load.figures import figures, median_run
from mmserve.load.report import Run
from mmserve.runtime.errors import StartupError

_ANSWER_WITHIN_S = 10.0
_FEW_WORDS, _MANY_WORDS = 8, 136
_MAX_FAILED_SHARE = 0.05
"""A sweep ends at a level where more requests fail."""


@dataclass(frozen=True)
class Target:
    """A server under load."""

    name: str
    url: str
    model: str
    api_key: str | None = None


@dataclass(frozen=True)
class Level:
    """Requests a second in an open loop, or clients in a closed one. ``max_concurrency``: of an open loop."""

    rate: float | None = None
    concurrency: int | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None

    @property
    def name(self) -> str:
        return f"{self.concurrency} clients" if self.rate is None else f"{self.rate:g} requests/s"

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


def served_model(url: str, api_key: str | None) -> str:
    """The first model that a server lists. Raises StartupError."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        request = urllib.request.Request(f"{url}/v1/models", headers=headers)
        with urllib.request.urlopen(request, timeout=_ANSWER_WITHIN_S) as reply:
            return str(json.load(reply)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise StartupError(f"{url} does not say which models it serves ({error}); name one with --model") from None


def tokens_per_word(target: Target, load: plan.Load, timeout_s: float) -> float:
    """Of random words, as the server counts tokens; 1 if it does not. Raises StartupError if it does not answer."""
    counts = []
    for count in (_FEW_WORDS, _MANY_WORDS):
        short = replace(load, requests=1, words=count, output_tokens=1, images=0, prompts=())
        (record,), _ = asyncio.run(run(target.url, plan.bodies(short, target.model, 0), 1, timeout_s, target.api_key))
        if record.error:
            raise StartupError(f"{target.url}: {record.error}")
        counts.append(record.prompt_tokens)
    return (counts[1] - counts[0]) / (_MANY_WORDS - _FEW_WORDS) or 1.0


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
    for level in levels:
        runs: dict[Target, list[tuple[Sequence[Record], float]]] = {target: [] for target in targets}
        for repeat in range(1, settings.repeats + 1):
            for target, load in targets.items():
                on_run(target, level, repeat)
                runs[target].append(_once(target, load, level, settings, repeat, on_end))
        found += [
            _reported(target, level, results, settings, several=len(targets) > 1) for target, results in runs.items()
        ]
        if any(
            one.figures["failed"] > _MAX_FAILED_SHARE * one.figures["num_prompts"] for one in found[-len(targets) :]
        ):
            break
    return found


def _once(
    target: Target, load: plan.Load, level: Level, settings: Settings, repeat: int, on_end: Callable[[], object]
) -> tuple[list[Record], float]:
    """New prompts in every run: a server may still know those of the last."""
    seed = settings.seed * 1000 + repeat
    bodies = plan.bodies(load, target.model, seed)
    gc.collect()
    gc.freeze()
    try:
        if level.rate is None:
            sent = run(target.url, bodies, level.concurrency or 1, settings.timeout_s, target.api_key, on_end)
        else:
            times = plan.arrivals(load.requests, level.rate, level.burstiness, seed)
            sent = run_at(target.url, bodies, times, level.max_concurrency, settings.timeout_s, target.api_key, on_end)
        return asyncio.run(sent)
    finally:
        gc.unfreeze()


def _reported(
    target: Target,
    level: Level,
    results: Sequence[tuple[Sequence[Record], float]],
    settings: Settings,
    *,
    several: bool,
) -> Run:
    label = f"{target.name}, {level.name}" if several else level.name
    found = median_run([figures(records, wall_s, settings.slo_ms or {}) for records, wall_s in results])
    size = level.size if math.isfinite(level.size) else 0.0
    return Run(label, target.name, size, found, results[-1][0])
