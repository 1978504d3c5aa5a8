"""Files that several processes, or a process and its successor, map into memory."""

from __future__ import annotations

import mmap
from pathlib import Path


def map_file(path: Path, nbytes: int) -> mmap.mmap:
    """The first ``nbytes`` of the file as shared memory. Creates the file if needed; bytes that it lacks are zeros.

    Raises OSError if the disk is full.
    """
    with path.open("a+b") as file:
        # Written rather than extended: the first use of a mapped page for which the disk has no room is SIGBUS.
        file.write(bytes(max(0, nbytes - file.tell())))
        file.flush()
        return mmap.mmap(file.fileno(), nbytes)
