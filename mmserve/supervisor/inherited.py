"""What children inherit from the supervisor besides sockets: the arena, and a pipe that tells them of its end."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from mmserve.ipc.arena import Arena, file_nbytes
from mmserve.runtime.errors import StartupError
from mmserve.runtime.memory.allocator import HUGE_PAGE_NBYTES
from mmserve.supervisor.startup import machine, plan


@contextmanager
def parent_death_pipe() -> Iterator[int]:
    """The read end, which children inherit. It is at end of file once this process is gone, for any reason."""
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    try:
        yield read_fd
    finally:
        os.close(read_fd)
        os.close(write_fd)


@contextmanager
def arena_of(nbytes: int, *, huge_pages: bool = False, when_used: bool = False) -> Iterator[Arena]:
    """The shared memory, see ``Arena.create``. Raises StartupError if the machine does not have that much."""
    try:
        arena = Arena.create(nbytes, huge_pages=huge_pages, when_used=when_used)
    except OSError as error:
        raise StartupError(
            f"--mm-cache-gb: no {nbytes / plan.GIB:.1f} GiB of shared memory to be had ({error.strerror}, "
            f"{machine.free_memory()[0] / plan.GIB:.1f} GiB are free); {_remedy(error, nbytes, huge_pages)}"
        ) from None
    try:
        yield arena
    finally:
        arena.close()


def _remedy(error: OSError, nbytes: int, huge_pages: bool) -> str:
    if error.errno == errno.EFBIG:
        return "raise the limit on the size of files (ulimit -f), or lower it"
    if huge_pages:
        num_pages = file_nbytes(nbytes, huge_pages=True) // HUGE_PAGE_NBYTES
        return f"reserve huge pages first (sysctl vm.nr_hugepages={num_pages}), or leave out --arena-huge-pages"
    return "lower it"
