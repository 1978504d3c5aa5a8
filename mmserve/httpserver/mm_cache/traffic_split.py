"""The share of requests that allocate by v2: one number of the whole server, in a file that every HTTP worker maps.

Whoever sets it is followed by all workers with their next request, and by a worker that is started again. Knows no
request.
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
    """The number at ``path``, which is made, holding ``initial``, if it is not there."""

    def __init__(self, path: Path, initial: float) -> None:
        _make(path, initial)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBER.size)
        # One item of this view is read and written as one aligned machine word, so never half of it.
        self._number = memoryview(self._map).cast("d")

    @property
    def fraction(self) -> float:
        """0 to 1."""
        return self._number[0]

    @fraction.setter
    def fraction(self, value: float) -> None:
        self._number[0] = value

    def close(self) -> None:
        """The file stays for the other workers."""
        self._number.release()
        self._map.close()


def _make(path: Path, initial: float) -> None:
    """Named only when it is whole, and never over another worker's."""
    descriptor, unnamed = tempfile.mkstemp(dir=path.parent)
    try:
        os.write(descriptor, _NUMBER.pack(initial))
        with contextlib.suppress(FileExistsError):
            os.link(unnamed, path)
    finally:
        os.close(descriptor)
        Path(unnamed).unlink()
