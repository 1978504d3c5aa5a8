"""Settings of glibc's allocator and of Python's garbage collector for the current process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # glibc's malloc.h
_TRIM_THRESHOLD_NBYTES = 256 << 20
"""Free memory at the top of the heap that is kept instead of being returned to the kernel."""
_MMAP_THRESHOLD_NBYTES = 32 << 20
"""Blocks from this size on get a mapping of their own, returned when freed. The largest value that glibc accepts."""
_LOADING_MMAP_THRESHOLD_NBYTES = 64 << 10
_PREFAULT_BLOCK_NBYTES = _MMAP_THRESHOLD_NBYTES - (1 << 20)
_NEW_OBJECTS = 10_000
"""Between two collections of young objects, each of which takes about a millisecond."""
_MADV_HUGEPAGE = 14  # Linux
HUGE_PAGE_NBYTES = 2 << 20
"""On x86-64, and on AArch64 with pages of 4 KiB."""


def keep_freed_memory() -> None:
    """Reuse freed memory of large blocks instead of returning it to the kernel at once.

    With glibc's defaults each request body and each picture gets new pages, and their page faults cost more than the
    work on them. All threads share one heap, because one thread frees what another allocated. Call this before the
    first thread starts. Does nothing without glibc.
    """
    _set_options(
        (_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_NBYTES), (_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_NBYTES)
    )


@contextlib.contextmanager
def return_freed_memory() -> Iterator[None]:
    """Within the block, return freed memory to the kernel at once. For loading weights.

    Temporary tensors then leave no holes in the heap between those that stay.
    """
    _set_options((_M_MMAP_THRESHOLD, _LOADING_MMAP_THRESHOLD_NBYTES))
    try:
        yield
    finally:
        keep_freed_memory()


def _set_options(*options: tuple[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in options:
            mallopt(option, value)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Within the block nothing is garbage-collected, and later collections pass over the objects that exist at its end.

    For imports: almost all they make stays, and collections took an eighth of the time in which a process with torch
    imports. It leaves 0.4 MiB of garbage.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_gc() -> None:
    """Exclude all objects that exist now from later garbage collections, and collect less often. For the end of a
    process's start.

    A full collection over modules and models stopped an HTTP worker's event loop for 40 to 70 ms under load. Python
    collects after 700 new objects, which a few live requests have: the collections took 8 % of an HTTP worker's time
    and found nothing, because what has ended is freed by its last reference.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def prefault_heap(nbytes: int) -> None:
    """Take ``nbytes`` of heap from the kernel now, so that the first requests cause no page faults.

    The memory is written once and freed; the heap keeps it. Free memory left over from loading is returned to the
    kernel first. Call ``keep_freed_memory`` before.
    """
    return_heap()
    step = _PREFAULT_BLOCK_NBYTES
    blocks = [bytes(min(step, nbytes - start)) for start in range(0, nbytes, step)]
    for block in blocks:
        ctypes.memset(ctypes.c_char_p(block), 0, len(block))


def return_heap() -> None:
    """Return all memory of the heap that is free now to the kernel. Does nothing without glibc."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def prefer_huge_pages(address: int, nbytes: int) -> None:
    """Ask for 2 MiB pages for memory that has not been written yet, to save TLB misses when it is read at random.

    Does nothing if the kernel does not allow programs to ask, or has no such pages free.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    first = -(-address // HUGE_PAGE_NBYTES) * HUGE_PAGE_NBYTES
    last = (address + nbytes) // HUGE_PAGE_NBYTES * HUGE_PAGE_NBYTES
    if madvise is not None and first < last:
        madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_HUGEPAGE)
