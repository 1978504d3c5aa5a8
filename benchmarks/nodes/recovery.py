"""When a load is back at the rate that it had before a fault. Pure: of the times at which pieces of text came."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

WINDOW_S = 2.0
_STEP_S = 0.1
MOST = 0.9
"""Of the rate before. Where an undisturbed load falls below that by itself, the least that it falls to counts."""


class Recovery(NamedTuple):
    """``after_s``: from the fault's begin until the moment from which all windows of two seconds have enough; infinite
    if the last one has not. ``least``: the worst window. Both beside the rate before the fault."""

    after_s: float
    least: float


def recovery(at_s: Sequence[float], before_s: float, begun_s: float, end_s: float, enough: float = MOST) -> Recovery:
    """``at_s``: when each piece came, in order. The rate before the fault is that from ``before_s`` to ``begun_s``; the
    load ended at ``end_s``, at least a window later. ``enough``: share of that rate."""
    shares = _shares(at_s, _rate(at_s, before_s, begun_s), begun_s, end_s)
    low = [step for step, share in enumerate(shares) if share < enough]
    if not low:
        return Recovery(0.0, min(shares))
    return Recovery(math.inf if low[-1] == len(shares) - 1 else (low[-1] + 1) * _STEP_S, min(shares))


def undisturbed(at_s: Sequence[float], from_s: float, until_s: float) -> float:
    """What is enough, as a load without faults shows: see MOST."""
    return min(MOST, *_shares(at_s, _rate(at_s, from_s, until_s), from_s, until_s))


def _rate(at_s: Sequence[float], from_s: float, until_s: float) -> float:
    return (bisect_left(at_s, until_s) - bisect_left(at_s, from_s)) / (until_s - from_s)


def _shares(at_s: Sequence[float], usual: float, from_s: float, until_s: float) -> list[float]:
    """Of each window within that time."""
    count = int((until_s - WINDOW_S - from_s) / _STEP_S) + 1
    begins = [from_s + step * _STEP_S for step in range(count)]
    return [_rate(at_s, begin, begin + WINDOW_S) / usual for begin in begins]
