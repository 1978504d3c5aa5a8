"""Memory of a process tree while a load runs, sampled by a separate process.

PSS divides a shared page among the processes that map it, so the sum over the tree counts every page once. Pages of a
memory file that no process has mapped are in no PSS, so the larger of mapped and allocated shared memory counts.
Allocated memory is read from the tree's own open files; Shmem in /proc/meminfo counts every tmpfs of the machine.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.load.beside import beside

INTERVAL_S = 0.1
MIB = 1024 * 1024
SHARED = "shared memory"
"""The key of ``Usage`` for shared memory, beside process titles."""
_NICENESS = 10
"""Of the sampling process: walking page tables ten times a second must not take CPU time from measured processes."""
_MEMINFO = Path("/proc/meminfo")


def available_nbytes() -> int:
    """Memory that the machine can still allocate without swapping (MemAvailable)."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", _MEMINFO.read_text())
    assert found, "the kernel does not report MemAvailable"
    return int(found.group(1)) * 1024


def tree(pid: int) -> list[int]:
    """The process and all its descendants, from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def _rollup(pid: int) -> dict[str, int]:
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":", 1)
        fields[name] = int(value.split()[0]) * 1024
    return fields


def _memory_files(pids: list[int]) -> int:
    """Bytes allocated in memory files (memfd, deleted /dev/shm files) that the tree holds open, each counted once."""
    seen: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            for entry in os.scandir(f"/proc/{pid}/fd"):
                target = os.readlink(entry.path)
                if target.startswith(("/memfd:", "/dev/shm/")):
                    status = os.stat(entry.path)
                    seen[(status.st_dev, status.st_ino)] = status.st_blocks * 512
        except OSError:
            continue
    return sum(seen.values())


@dataclass(frozen=True)
class Usage:
    """Bytes by process: process title -> PSS without shared memory, and SHARED -> shared memory. Processes with one
    title are added up."""

    by_process: Mapping[str, int]

    @property
    def nbytes(self) -> int:
        return sum(self.by_process.values())


def usage(pid: int) -> Usage:
    """Memory of the process and all its descendants now."""
    pids = tree(pid)
    mapped = 0
    found: dict[str, int] = {}
    for each in pids:
        try:
            fields, name = _rollup(each), title(each)
        except OSError:
            continue
        shared = fields.get("Pss_Shmem", 0)
        found[name] = found.get(name, 0) + fields.get("Pss", 0) - shared
        mapped += shared
    return Usage(found | {SHARED: max(mapped, _memory_files(pids))})


def title(pid: int) -> str:
    """``mmserve: httpserver 0`` -> ``httpserver 0``; the program's name for those that set no title."""
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    title = words[0].decode(errors="replace")
    if ": " in title:
        return title.split(": ", 1)[1].split(" (")[0].strip()
    return Path(f"/proc/{pid}/comm").read_text().strip()


@dataclass
class Peak:
    """Memory of a process tree around a load: before it, at the peak, and every sample."""

    idle: Usage = field(default_factory=lambda: Usage({}))
    peak: Usage = field(default_factory=lambda: Usage({}))
    series: list[tuple[float, Usage]] = field(default_factory=list)
    """(seconds since the start, usage)"""

    @property
    def idle_nbytes(self) -> int:
        return self.idle.nbytes

    @property
    def peak_nbytes(self) -> int:
        return self.peak.nbytes

    @property
    def growth_nbytes(self) -> int:
        return self.peak.nbytes - self.idle.nbytes

    def growth_by_process(self) -> dict[str, int]:
        """Growth at the peak by process, the largest first. Processes started during the load count in full."""
        grown = {name: nbytes - self.idle.by_process.get(name, 0) for name, nbytes in self.peak.by_process.items()}
        return dict(sorted(grown.items(), key=lambda entry: -entry[1]))


@contextmanager
def sampled(pid: int | None) -> Iterator[Peak]:
    """Samples during the block; the result is complete on exit. Without a pid nothing is measured."""
    peak = Peak()
    if pid is None:
        yield peak
        return
    peak.idle = usage(pid)
    with beside(_sample, pid, peak.series.extend):
        yield peak
    peak.peak = max((each for _, each in peak.series), key=lambda each: each.nbytes)


def _sample(pid: int, connection: Connection) -> list[tuple[float, Usage]]:
    os.nice(_NICENESS)
    started_s, series = time.monotonic(), [(0.0, usage(pid))]
    connection.send(None)
    while not connection.poll(INTERVAL_S):
        series.append((time.monotonic() - started_s, usage(pid)))
    return [*series, (time.monotonic() - started_s, usage(pid))]
