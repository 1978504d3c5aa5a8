"""CPU time and wake-ups of each process of a tree between two moments.

Uses the scheduler's nanosecond counters: the ticks of /proc/*/stat miss work that ends before the next tick.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.memory import title, tree


@dataclass(frozen=True)
class CpuUse:
    """Of one process: seconds of CPU per second, and wake-ups of its threads per second."""

    cpu_share: float
    wakeups_per_s: float


def cpu_use(pid: int, seconds: float) -> Mapping[str, CpuUse]:
    """Observe the process and its descendants for ``seconds``. Returns title -> figures; processes with one title are
    added up."""
    before, started_s = _threads(pid), time.monotonic()
    time.sleep(seconds)
    after, took_s = _threads(pid), time.monotonic() - started_s
    found = _between(before, after)
    return {name: CpuUse(cpu_ns / 1e9 / took_s, switches / took_s) for name, (cpu_ns, switches) in found.items()}


@contextmanager
def cpu_spent(pid: int) -> Iterator[dict[str, float]]:
    """Observe the process and its descendants during the block. At its end: title -> seconds of CPU."""
    before, found = _threads(pid), dict[str, float]()
    yield found
    found |= {name: cpu_ns / 1e9 for name, (cpu_ns, _) in _between(before, _threads(pid)).items()}


_Threads = Mapping[int, tuple[str, int, int]]


def _between(before: _Threads, after: _Threads) -> dict[str, tuple[int, int]]:
    """Nanoseconds on a CPU and switches, by title."""
    found: dict[str, tuple[int, int]] = {}
    for thread, (name, cpu_ns, switches) in after.items():
        # A thread that started in between has used all of its CPU time in between.
        _, old_ns, old_switches = before.get(thread, (name, 0, 0))
        so_far = found.get(name, (0, 0))
        found[name] = (so_far[0] + cpu_ns - old_ns, so_far[1] + switches - old_switches)
    return found


def _threads(pid: int) -> _Threads:
    """Thread id -> its process's title, nanoseconds on a CPU, voluntary context switches."""
    return {thread: counts for each in tree(pid) for thread, counts in _of_process(each)}


def _of_process(pid: int) -> Iterator[tuple[int, tuple[str, int, int]]]:
    try:
        name = title(pid)
        for task in Path(f"/proc/{pid}/task").iterdir():
            cpu_ns = int((task / "schedstat").read_text().split()[0])
            switches = re.search(r"^voluntary_ctxt_switches:\s+(\d+)", (task / "status").read_text(), re.MULTILINE)
            assert switches, "every Linux counts them"
            yield int(task.name), (name, cpu_ns, int(switches.group(1)))
    except (FileNotFoundError, ProcessLookupError):
        return  # it has ended
