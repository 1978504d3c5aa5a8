"""How this process's memory is taken from the kernel and given back. Knows nothing of what it is used for."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h
_KEPT_NBYTES = 256 << 20
_LARGEST_KEPT_NBYTES = 32 << 20
"""The most that glibc takes."""


def keep_freed_memory() -> None:
    """Freed memory of large blocks is used again, up to _KEPT_NBYTES of it, instead of going back at once.

    By default each body and each picture is new memory, and the page faults cost more than all that is done with it.
    One heap for all threads, for what one thread allocates another one frees. Without glibc nothing is changed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_NBYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_NBYTES)
        mallopt(_M_ARENA_MAX, 1)
