"""How this process's memory is taken from the kernel and given back. Knows nothing of what it is used for."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h
_KEPT_NBYTES = 256 << 20
_LARGEST_KEPT_NBYTES = 32 << 20
"""The most that glibc takes."""
_LEAST_APART_NBYTES = 64 << 10
_PIECE_NBYTES = _LARGEST_KEPT_NBYTES - (1 << 20)
_MADV_HUGEPAGE, _HUGE_NBYTES = 14, 2 << 20  # Linux


def keep_freed_memory() -> None:
    """Freed memory of large blocks is used again, up to _KEPT_NBYTES of it, instead of going back at once.

    By default each body and each picture is new memory, and the page faults cost more than all that is done with it.
    One heap for all threads, for what one thread allocates another one frees; so this comes before the first thread.
    Without glibc nothing is changed.
    """
    _set((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _LARGEST_KEPT_NBYTES), (_M_TRIM_THRESHOLD, _KEPT_NBYTES))


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Whatever is freed within goes back, and leaves no holes among what stays: pages of holes would be taken again
    one by one later, by whatever fits them, while the workspace lies beside them."""
    _set((_M_MMAP_THRESHOLD, _LEAST_APART_NBYTES))
    try:
        yield
    finally:
        keep_freed_memory()


def _set(*options: tuple[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options:
            mallopt(option, value)


def freeze_gc() -> None:
    """What lives now, modules and models, lives to the end: the collector need not look through it again. Doing so took
    40 to 70 ms of an HTTP worker every few seconds of a flood, in which its event loop stood still."""
    gc.collect()
    gc.freeze()


def prefault_heap(nbytes: int) -> None:
    """From the kernel now what computing will need, so that it is not taken page by page in the middle of a request:
    written once and freed, to be used again. What loading has left goes back. After ``keep_freed_memory``."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
    pieces = [bytes(min(_PIECE_NBYTES, nbytes - at)) for at in range(0, nbytes, _PIECE_NBYTES)]
    for piece in pieces:
        ctypes.memset(ctypes.c_char_p(piece), 0, len(piece))


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """For memory that is read all over and has not been written yet: a CPU knows where few pages are, so pages of 2 MiB
    are found sooner. Only where the kernel has some, and where it lets programs ask."""
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    first = -(-address // _HUGE_NBYTES) * _HUGE_NBYTES
    last = (address + nbytes) // _HUGE_NBYTES * _HUGE_NBYTES
    if madvise is not None and first < last:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)
