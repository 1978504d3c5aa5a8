"""The kernels' own threads, where they run, and how they share the cores with other processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

from mmserve.runtime.cpu import topology

_THREADS = Path("/proc/self/task")
_read_by_kernels: list[object] = []
"""The array whose address the kernels have."""


def place(rank: int, size: int) -> None:
    """Keep this process, one of ``size`` ranks, on the CPUs of ``topology.cpus_of_rank``.

    That is all threads that it has, and those it will have. The system then allocates its memory on their NUMA node.
    """
    if size == 1:
        return
    allowed = os.sched_getaffinity(0)
    wanted = topology.cpus_of_rank(topology.cores(allowed), rank, size)
    for thread in _THREADS.iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), wanted)


def set_threads(kernels: ctypes.CDLL, count: int) -> None:
    """Compute with at least ``count`` threads from now on, the caller's included. Threads are never ended."""
    kernels.mm_set_threads(count)


def share_cores(
    kernels: ctypes.CDLL, busy_cores: ctypes.Array[ctypes.c_int32], *, among: int = 1, at_least: int = 1
) -> None:
    """See ``Platform.share_cores``."""
    kernels.mm_leave(ctypes.addressof(busy_cores), len(busy_cores), among, at_least)
    _read_by_kernels[:] = [busy_cores]  # after the call: until then they read the previous one
