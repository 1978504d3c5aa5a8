"""How many cores each process of a role computes on at this moment, shared between processes through a mapped file.

Ranks and visual servers of a CPU deployment share the cores. Each reads the numbers of the other role and uses fewer
threads while those compute, but never fewer than its own share. Without this, threads of both would meet on one core;
the kernel switches between them every few milliseconds, and the other threads of the operation wait for the one that
was switched out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmserve.runtime.memory.mapped_file import map_file


class BusyCores:
    """One role's counts. Creates the file at ``path`` if needed; it stays mapped for the life of the process."""

    def __init__(self, path: Path, num_processes: int) -> None:
        counts = ctypes.c_int32 * num_processes
        self.counts = counts.from_buffer(map_file(path, ctypes.sizeof(counts)))
        """int32 [num_processes]: cores on which each process computes now."""

    def clear(self, index: int) -> None:
        """Reset the count of a process that starts: its predecessor may have been killed while computing."""
        self.counts[index] = 0

    @contextmanager
    def computing(self, index: int, num_cores: int) -> Iterator[None]:
        """Within the block, process ``index`` computes on ``num_cores`` cores."""
        self.counts[index] = num_cores
        try:
            yield
        finally:
            self.clear(index)
