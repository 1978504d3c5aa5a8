"""On how many cores each process of a role computes at this moment: numbers in a file that ranks and visual servers
map. Each leaves the others theirs, down to its own share, and computes with the rest. Knows no kernels.

Threads that meet on one core take it in turns of milliseconds, and all others of an operation wait for the one that has
lost its turn in the middle of it.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BusyCores:
    """``path`` is made if it is not there. Its numbers stay mapped for the life of the process."""

    def __init__(self, path: Path, num_processes: int) -> None:
        numbers = ctypes.c_int32 * num_processes
        with path.open("a+b") as file:
            file.truncate(ctypes.sizeof(numbers))
            self.numbers = numbers.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(numbers)))
        """int32, one for each process"""

    def none(self, index: int) -> None:
        """For a process that starts: one of its number that was killed before may have left something."""
        self.numbers[index] = 0

    @contextmanager
    def taken(self, index: int, count: int) -> Iterator[None]:
        """It computes on so many within the block."""
        self.numbers[index] = count
        try:
            yield
        finally:
            self.none(index)
