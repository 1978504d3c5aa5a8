"""When a load is back at the rate that it had before a fault. Pure: of the times at which pieces of text came."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

WINDOW_S = 2.0
_STEP_S = 0.1
BACK = 0.9


class Recovery(NamedTuple):
    """``after_s``: from the fault's begin until the moment from which all windows of two seconds have at least 0.9 of
    the rate before it; infinite if the last one has not. ``least``: the worst window's share of that rate."""

    after_s: float
    least: float


def recovery(at_s: Sequence[float], before_s: float, begun_s: float, end_s: float) -> Recovery:
    """``at_s``: when each piece came, in order. The rate before the fault is that from ``before_s`` to ``begun_s``; the
    load ended at ``end_s``, at least a window later."""

    def rate(from_s: float, until_s: float) -> float:
        return (bisect_left(at_s, until_s) - bisect_left(at_s, from_s)) / (until_s - from_s)

    usual = rate(before_s, begun_s)
    count = int((end_s - WINDOW_S - begun_s) / _STEP_S) + 1
    shares = [rate(at, at + WINDOW_S) / usual for at in (begun_s + step * _STEP_S for step in range(count))]
    low = [step for step, share in enumerate(shares) if share < BACK]
    if not low:
        return Recovery(0.0, min(shares))
    return Recovery(math.inf if low[-1] == count - 1 else (low[-1] + 1) * _STEP_S, min(shares))
