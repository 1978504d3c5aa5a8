"""Where the tensor-parallel ranks find each other: a memory file, so that no disk has to have room for it."""

from __future__ import annotations

import os


class Rendezvous:
    """One file for each start of the engine: what an earlier start has left in it would mislead the next one."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._fd: int | None = None

    def fd(self, incarnation: int) -> int:
        """The file of this start; that of an earlier one is closed. Raises OSError without descriptors or memory."""
        if self._fd is None or incarnation != self._incarnation:
            self.close()
            self._fd, self._incarnation = os.memfd_create("mmserve-ranks"), incarnation
        return self._fd

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
