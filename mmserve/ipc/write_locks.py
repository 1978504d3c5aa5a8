"""Locks on byte ranges of the arena's memory file, held by writers while they write.

They tell the cache server which extents somebody may still write after it has ended that writer's right to do so. The
kernel keeps them (fcntl's open file description locks) and drops those of a process that dies, so a lock never outlives
its writer. Its own mutex orders memory: of a writer that locks and then looks at the extent's header, and a cache
server that changes the header and then looks at the lock, at least one sees the other, on every architecture.
"""

from __future__ import annotations

import fcntl
import os
import struct

_FLOCK = struct.Struct("@hhqqi")
"""struct flock: type, whence, start, length, process."""


class WriteLocks:
    """The locks of one Arena object: two objects exclude each other even in one process, threads of one do not."""

    def __init__(self, memory_fd: int) -> None:
        # All processes inherit one open file description from the supervisor; a lock belongs to a description.
        self._fd = os.open(f"/proc/self/fd/{memory_fd}", os.O_RDWR | os.O_CLOEXEC)

    def acquire(self, start: int, nbytes: int) -> None:
        """Raises BlockingIOError if another Arena object has locked part of the range."""
        self._set(fcntl.F_WRLCK, start, nbytes)

    def release(self, start: int, nbytes: int) -> None:
        self._set(fcntl.F_UNLCK, start, nbytes)

    def is_held(self, start: int, nbytes: int) -> bool:
        """True if another Arena object has locked part of the range."""
        # Trying is more than asking (F_OFD_GETLK): it takes the kernel's mutex even if there is no lock at all.
        try:
            self.acquire(start, nbytes)
        except BlockingIOError:
            return True
        self.release(start, nbytes)
        return False

    def held(self, nbytes: int) -> list[tuple[int, int]]:
        """(start, bytes) of each range below ``nbytes`` that other Arena objects have locked, in order."""
        found: list[tuple[int, int]] = []
        start = 0
        while start < nbytes and self.is_held(start, nbytes - start):
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, nbytes - start, 0)
            kind, _, first, length, _ = _FLOCK.unpack_from(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))
            if kind == fcntl.F_UNLCK:  # released meanwhile
                continue
            found.append((first, length))
            start = first + length
        return found

    def close(self) -> None:
        os.close(self._fd)

    def _set(self, kind: int, start: int, nbytes: int) -> None:
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, nbytes, 0))
