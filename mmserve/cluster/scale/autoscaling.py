"""How many replicas there should be, from what they report: how long requests wait and how many slots are taken. Pure.

Not from CPU use, which is full whenever anything is computed, and not from hits: a new replica always lowers them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_MOST_USED, _LEAST_USED = 0.8, 0.5
"""Share of all slots: above the first there are more replicas, below the second fewer. Apart, so that replicas do not
come and go."""
_MAX_WAIT_S = 1.0
"""A longer mean wait asks for a replica more, however few slots are taken: pictures wait for room in the arena,
or to be encoded."""
_MAX_GROWTH = 2.0
"""Replicas that start take memory and bandwidth from those that serve: at most twice as many at once."""


class Pressure(NamedTuple):
    """Of one replica. ``used``: requests there for each slot; ``wait_s``: of a new request with a new picture."""

    used: float
    wait_s: float


def wanted(pressures: Sequence[Pressure], current: int, queued: float, least: int, most: int) -> int:
    """Replicas that there should be, from ``least`` to ``most``. ``pressures``: of those that report; ``current``: all,
    also those that start. ``queued``: requests that no replica has yet; with ``least`` 0 they wake the first one."""
    if not (pressures and current):  # the last replica's reports may outlive it
        return max(least, min(most, max(current, 1 if queued else 0)))
    used = sum(each.used for each in pressures)
    wait_s = sum(each.wait_s for each in pressures) / len(pressures)
    count = current
    if used > _MOST_USED * current:
        count = math.ceil(used / _MOST_USED)
    elif wait_s > _MAX_WAIT_S:
        count = current + (len(pressures) >= current)
    elif used < _LEAST_USED * (current - 1) or not (used or queued):
        count = math.ceil(used / _LEAST_USED)
    return max(least, min(most, count, math.ceil(_MAX_GROWTH * current)))
