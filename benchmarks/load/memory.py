"""Memory of a process tree while a load runs, sampled by a process of its own so that a busy client misses nothing.

PSS shares a page's size among those who map it, so the sum over the tree counts every page once. Pages of a
shared-memory file that nobody has mapped are in nobody's PSS: the larger of mapped and allocated shared memory counts.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

INTERVAL_S = 0.1
MIB = 1024 * 1024


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


def usage_nbytes(pid: int) -> int:
    """PSS of the tree plus shared memory that is allocated but not mapped, in bytes."""
    pids = tree(pid)
    private = mapped = 0
    for each in pids:
        try:
            fields = _rollup(each)
        except OSError:
            continue
        shared = fields.get("Pss_Shmem", 0)
        private += fields.get("Pss", 0) - shared
        mapped += shared
    return private + max(mapped, _memory_files(pids))


@dataclass
class Peak:
    """Result of a Sampler: bytes before the load and the highest seen during it."""

    idle_nbytes: int = 0
    peak_nbytes: int = 0


def _sample(pid: int, connection: Connection) -> None:
    peak = 0
    while not connection.poll(INTERVAL_S):
        peak = max(peak, usage_nbytes(pid))
    connection.send(max(peak, usage_nbytes(pid)))


class Sampler:
    """``with Sampler(pid) as peak: ...`` fills ``peak`` on exit; without a pid it measures nothing."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._peak = Peak()

    def __enter__(self) -> Peak:
        if self._pid is not None:
            self._peak.idle_nbytes = usage_nbytes(self._pid)
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_sample, args=(self._pid, theirs), daemon=True)
            self._process.start()
            time.sleep(INTERVAL_S)
        return self._peak

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pid is not None:
            self._connection.send(None)
            self._peak.peak_nbytes = self._connection.recv()
            self._process.join()
