"""The order of faults: each process and each fault in turn, then at random. Pure."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from mmserve.cli.chaos.processes import Fault
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
_MAX_RESTARTS, _WINDOW_S = 4, 60.0
"""One less than the restarts that the supervisor allows, since a process may also end for another reason."""


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


class Pace:
    """Keeps faults that may restart a group apart: a server whose group restarts too often ends, as it should."""

    def __init__(self) -> None:
        self._restarts: dict[str, deque[float]] = {}
        """When each group's latest faults were, oldest first."""

    def wait_s(self, fault: Fault, now_s: float) -> float:
        """Seconds until the fault may be inflicted."""
        recent = self._restarts.get(_group(fault.title))
        if recent is None or len(recent) < _MAX_RESTARTS:
            return 0.0
        return max(0.0, recent[0] + _WINDOW_S - now_s)

    def inflicted(self, fault: Fault, now_s: float) -> None:
        """The fault has been inflicted."""
        if _may_restart(fault):
            self._restarts.setdefault(_group(fault.title), deque(maxlen=_MAX_RESTARTS)).append(now_s)


def _group(title: str) -> str:
    """Ranks and router restart as one."""
    return "engine" if title.startswith(("model_backend", "router")) else title


def _may_restart(fault: Fault) -> bool:
    return fault.kind in ("kill", "error", "memory") or fault.stopped_s > SHORT_STOP_S
