"""Errors that say that the machine has run out of something: descriptors, memory, disk space, threads.

No request is at fault and the shortage may pass, so a client gets 503 and may try again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from mmserve.runtime.errors import Shortage, StartupError

DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Of this process (``ulimit -n``), and of the whole machine."""
OUT_OF_RESOURCES = (*DESCRIPTORS, errno.ENOBUFS, errno.ENOMEM)
"""What ``accept`` fails with if there is no descriptor or memory for a new connection. Others are not affected."""
_MISSING = {
    **dict.fromkeys(DESCRIPTORS, "file descriptors"),
    **dict.fromkeys((errno.ENOBUFS, errno.ENOMEM), "memory"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "disk space"),
}
_RETRY_AFTER_S = 2.0
_OF_A_START = 16
"""More than libzmq needs for its threads and a socket. It aborts the process where it lacks one: when a socket is made,
and later when a peer connects to a receiver."""
OF_A_LINK = 32
"""Descriptors that must be free before a ZeroMQ context or a socket for several peers is made: libzmq ends the process
where it lacks one."""


def shortage_of(error: BaseException) -> Shortage | None:
    """The client's error if ``error``, or what it was raised from, says that something has run out; else None."""
    pending, seen = [error], set[int]()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if missing := _missing(one):
            return out_of(missing)
        if one.__cause__ is not None:
            pending.append(one.__cause__)
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions
    return None


def out_of(missing: str) -> Shortage:
    """The client's error when there is no more of ``missing``."""
    return Shortage(f"the server is out of {missing}", retry_after_s=_RETRY_AFTER_S)


def has_descriptors(count: int = 1) -> bool:
    """True if this process can open so many files now."""
    with ExitStack() as opened:
        for _ in range(count):
            try:
                descriptor = os.eventfd(0)
            except OSError as error:
                return error.errno not in DESCRIPTORS
            opened.callback(os.close, descriptor)
    return True


class SpareDescriptor:
    """A descriptor that is kept to be closed when there is no other one left. Not thread-safe."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self.refill()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within the block one descriptor is free, unless another thread takes it."""
        self.close()
        try:
            yield
        finally:
            self.refill()

    def refill(self) -> None:
        """Take a descriptor again, if there was none when the last block ended and there is one now."""
        if self._fd is None:
            with suppress(OSError):
                self._fd = os.eventfd(0)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _missing(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "memory"
    return _MISSING.get(error.errno or 0, "") if isinstance(error, OSError) else ""


def check_descriptors() -> None:
    """Raises StartupError if this process has too few descriptors for a link to another process."""
    if not has_descriptors(_OF_A_START):
        raise StartupError("too few file descriptors are left for the links to the other processes: raise `ulimit -n`")
