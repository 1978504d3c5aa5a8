"""The order of faults: each process and each fault in turn, then at random. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from mmserve.chaos.processes import Fault

SHORT_STOP_S = 5.0
"""Shorter than --stuck-timeout: the process goes on where it was."""
LONG_STOP_S = 40.0
"""Longer than the default --stuck-timeout: the process is killed and restarted."""


def faults(titles: Sequence[str], *, seed: int, long_stops: bool) -> Iterator[Fault]:
    """Without end. ``long_stops``: with stops of LONG_STOP_S, which take most of a short drill's time."""
    kinds = [_kill, _short_stop, _garbage, *([_long_stop] if long_stops else [])]
    for kind in kinds:
        yield from (kind(title) for title in titles)
    rng = random.Random(seed)
    while True:
        yield rng.choice(kinds)(rng.choice(titles))


def _kill(title: str) -> Fault:
    return Fault(title, "kill")


def _short_stop(title: str) -> Fault:
    return Fault(title, "stop", SHORT_STOP_S)


def _long_stop(title: str) -> Fault:
    return Fault(title, "stop", LONG_STOP_S)


def _garbage(title: str) -> Fault:
    return Fault(title, "garbage")
