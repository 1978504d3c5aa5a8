"""The fraction of requests that use allocation path v2: one number of the whole server, in a memory-mapped file.

Every HTTP worker maps the same file. A new value applies to the next request of every worker, and to workers that
are restarted later.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
from pathlib import Path

_NUMBER = struct.Struct("=d")


class TrafficSplit:
    """Maps the number at ``path``; creates the file with ``initial`` if it is missing."""

    def __init__(self, path: Path, initial: float) -> None:
        if not path.exists():  # a worker that is restarted needs no room on the disk
            _create(path, initial)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBER.size)
        # The view reads and writes the number as one aligned machine word, so no reader sees half of a new value.
        self._number = memoryview(self._map).cast("d")

    @property
    def fraction(self) -> float:
        """0 to 1."""
        return self._number[0]

    @fraction.setter
    def fraction(self, value: float) -> None:
        self._number[0] = value

    def close(self) -> None:
        """Unmap. The file stays for the other workers."""
        self._number.release()
        self._map.close()


def _create(path: Path, initial: float) -> None:
    """Atomic: the file gets its name only when it is complete, and never replaces another worker's file."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        os.write(descriptor, _NUMBER.pack(initial))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.close(descriptor)
        Path(temporary).unlink()
