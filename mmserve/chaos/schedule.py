"""The order of faults: each process and each fault in turn, then at random. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from mmserve.chaos.processes import Fault
from mmserve.runtime.errors import StartupError

SHORT_STOP_S = 5.0
"""Shorter than --stuck-timeout: the process goes on where it was."""
LONG_STOP_S = 40.0
"""Longer than the default --stuck-timeout: the process is killed and restarted."""
FAULTS: Mapping[str, Callable[[str], Fault]] = {
    "kill": partial(Fault, kind="kill"),
    "stop": partial(Fault, kind="stop", stopped_s=SHORT_STOP_S),
    "garbage": partial(Fault, kind="garbage"),
    "error": partial(Fault, kind="error"),
    "memory": partial(Fault, kind="memory"),
    "slow": partial(Fault, kind="slow"),
    "long-stop": partial(Fault, kind="stop", stopped_s=LONG_STOP_S),
}
"""Name -> the fault on a process with this title. The last one takes most of a drill's time."""


def chosen(names: str | None) -> tuple[str, ...]:
    """The faults of a list with commas; all without one. Raises StartupError for another name."""
    found = tuple(FAULTS) if names is None else tuple(name.strip() for name in names.split(","))
    if unknown := [name for name in found if name not in FAULTS]:
        raise StartupError(f"--faults {unknown[0]}: choose among {', '.join(FAULTS)}")
    return found


def faults(titles: Sequence[str], *, seed: int, names: Sequence[str]) -> Iterator[Fault]:
    """Without end. ``names``: of FAULTS, at least one."""
    for name in names:
        yield from (FAULTS[name](title) for title in titles)
    rng = random.Random(seed)
    while True:
        yield FAULTS[rng.choice(names)](rng.choice(titles))
