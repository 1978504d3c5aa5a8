"""Times the ways of a product, and decides between them. A choice is kept for ever, so it must not follow noise."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from mmserve.model_backend.platforms.cpu.ways.candidates import Way

_LEAST_ROUNDS, _MOST_ROUNDS = 6, 20
_LEAST_GAIN = 0.05
"""Of the time by default. Differences below it are mostly noise."""
_LEAST_GAIN_OF_ONE_ROW = 0.1
"""Products with one row wait for memory, whose rate wanders more than that of arithmetic."""


def fastest(ways: Sequence[Way], rows: int, run: Callable[[Way], None], within_s: float) -> tuple[Way, float]:
    """The fastest way, and the share of the default's time that it saves. The default is the first.

    The default (and 0) unless another is clearly faster in both halves of the rounds, and if there is no time for the
    fewest rounds.
    """
    started_s = time.perf_counter()
    run(ways[0])
    if (time.perf_counter() - started_s) * (1 + _LEAST_ROUNDS * len(ways)) > within_s:
        return ways[0], 0.0
    rounds: list[list[float]] = []
    while len(rounds) < _MOST_ROUNDS and time.perf_counter() - started_s < within_s:
        rounds.append([_timed(run, way) for way in ways])
    if len(rounds) < _LEAST_ROUNDS:
        return ways[0], 0.0
    return decide(ways, rounds, _LEAST_GAIN_OF_ONE_ROW if rows == 1 else _LEAST_GAIN)


def decide(ways: Sequence[Way], rounds: Sequence[Sequence[float]], least_gain: float) -> tuple[Way, float]:
    """``rounds``: each has the seconds of all ways, one after the other, so that slow moments meet all of them."""
    half = len(rounds) // 2
    gains = [min(found) for found in zip(*map(_gains, (rounds[:half], rounds[half:])), strict=True)]
    best = max(range(len(ways)), key=gains.__getitem__)
    return (ways[best], gains[best]) if gains[best] > least_gain else (ways[0], 0.0)


def _gains(rounds: Sequence[Sequence[float]]) -> list[float]:
    """Of each way: the share of the default's time that it saves, by the median or by the least time.

    The smaller of the two: medians are those of disturbed rounds while most are, the least times may be lucky ones.
    """
    of_medians, of_least = ([measure(times) for times in zip(*rounds, strict=True)] for measure in (median, min))
    return [1 - max(a / of_medians[0], b / of_least[0]) for a, b in zip(of_medians, of_least, strict=True)]


def _timed(run: Callable[[Way], None], way: Way) -> float:
    started_s = time.perf_counter()
    run(way)
    return time.perf_counter() - started_s
