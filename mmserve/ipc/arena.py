"""The shared-memory arena: an anonymous memory file that processes map, and reads and writes of extents in it.

The cache server decides which extent belongs to which item. Each extent carries its generation before and after the
payload, so that a reader with an old handle gets StaleHandle and never the bytes of another item:

    extent.offset -> | generation, nbytes (64 B header) | payload ... | generation (8 B) | padding to 64 |

The cache server opens an extent (_OPEN in the header) before anybody may write it, and erases the header to end that
right. A writer holds a lock on the extent from its look at the header to the end of its copy, so the cache server knows
which extents a writer that was held up may still change, and does not give those to others (``write_locks``).

The epoch word after the last extent holds the first generation of the cache server's current run. Handles from an
earlier run are stale for readers and writers.

The memory file has no name, so the kernel frees it with the last process that maps it. It is not in /dev/shm; its size
is limited by free memory and by the limit of the control group (container).
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from mmserve.ipc.fence import fence
from mmserve.ipc.write_locks import WriteLocks
from mmserve.messages.media import Handle
from mmserve.runtime.memory.allocator import HUGE_PAGE_NBYTES

ALIGNMENT = 64
# Native order: such a word is copied in one piece where it is aligned, as header and epoch are.
_HEADER = struct.Struct("@QQ")
_TRAILER = struct.Struct("@Q")
_EPOCH = struct.Struct("@Q")
_OPEN = 1 << 63
"""Added to the header's nbytes: the extent may be written and is not complete. No reader accepts it."""
_OVERHEAD_NBYTES = ALIGNMENT + _TRAILER.size + ALIGNMENT - 1
"""Header and trailer, plus ALIGNMENT - 1 for rounding up to a multiple of ALIGNMENT."""
_HUGE_PAGES = os.MFD_HUGETLB | os.MFD_HUGE_2MB
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not defined in the mmap module
GENERATIONS = 1 << 40
"""Number of generations in one epoch (one run of the cache server)."""


class StaleHandle(Exception):
    """The extent was reused, never written, or the handle is forged. To be treated as a cache miss."""


def extent_nbytes(payload_nbytes: int) -> int:
    """Arena bytes of an extent with this payload, including header, trailer and alignment."""
    return (payload_nbytes + _OVERHEAD_NBYTES) & -ALIGNMENT


def payload_nbytes(extent: int) -> int:
    """The largest payload of an extent of so many arena bytes."""
    return extent - ALIGNMENT - _TRAILER.size


def file_nbytes(arena_nbytes: int, *, huge_pages: bool) -> int:
    """Size of the memory file for an arena of this size."""
    page_nbytes = HUGE_PAGE_NBYTES if huge_pages else 1
    return -(-(arena_nbytes + _EPOCH.size) // page_nbytes) * page_nbytes


class Arena:
    """One process's mapping of the memory file. ``fd`` stays open and may be inherited by child processes."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._map = mmap.mmap(fd, nbytes + _EPOCH.size)
        self._view = memoryview(self._map)
        self._locks = WriteLocks(fd)

    @classmethod
    def create(cls, nbytes: int, *, huge_pages: bool = False, when_used: bool = False) -> Arena:
        """Create the memory file. Its memory is allocated at once or, with ``when_used``, page by page.

        Huge pages must have been reserved, and are always allocated at once; the size is rounded up.

        Raises OSError if the machine cannot provide the memory: ENOSPC, ENOMEM, or EFBIG for a limit on file sizes.
        Only sizes beyond the physical memory are refused here. Allocating more than is free invokes the kernel's OOM
        killer, so the caller must check free memory first.
        """
        if nbytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        fd = os.memfd_create("mmserve-arena", os.MFD_CLOEXEC | (_HUGE_PAGES if huge_pages else 0))
        try:
            size = file_nbytes(nbytes, huge_pages=huge_pages)
            if when_used and not huge_pages:
                os.ftruncate(fd, size)
            else:
                os.posix_fallocate(fd, 0, size)
            return cls.attach(fd)
        except BaseException:  # also on Ctrl-C, the memory must be freed; the exception is re-raised
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Map a memory file inherited from the supervisor."""
        return cls(fd, os.fstat(fd).st_size - _EPOCH.size)

    def map_all(self) -> None:
        """Map all pages into this process now (some tenths of a second a GiB), to avoid page faults on first writes.

        A page fault costs more than writing the page. Does nothing on kernels before Linux 5.14.
        """
        with suppress(OSError):
            self._map.madvise(_MADV_POPULATE_WRITE)

    # For the cache server

    def begin_epoch(self, first_generation: int) -> list[tuple[int, int]]:
        """Invalidate all handles with earlier generations. Called by the cache server when it starts.

        Returns (start, bytes) of the extents that writers of an earlier epoch are still writing, and may go on to: they
        can be given to nobody until ``is_being_written`` is False.
        """
        _EPOCH.pack_into(self._view, self.nbytes, first_generation)
        return self._locks.held(self.nbytes)

    def open(self, handle: Handle) -> None:
        """Allow holders of the handle to write the extent. Does not check bounds: the allocator has made the handle."""
        _HEADER.pack_into(self._view, handle.offset, handle.generation, handle.nbytes | _OPEN)

    def erase(self, handle: Handle) -> None:
        """Make the handle stale for ever, for readers and writers. Called by the cache server when it frees an extent,
        or to end the right of writing it."""
        self._check_bounds(handle)
        _HEADER.pack_into(self._view, handle.offset, 0, 0)
        _TRAILER.pack_into(self._view, self._trailer(handle), 0)
        fence()

    def is_being_written(self, handle: Handle) -> bool:
        """True if a writer is at work in the extent. If not, and the handle was erased before, none ever will be."""
        return self._locks.is_held(handle.offset, extent_nbytes(handle.nbytes))

    # For writers

    @contextmanager
    def writing(self, handle: Handle) -> Iterator[memoryview]:
        """The payload, to be filled by its only writer; it is sealed at the end of the block, if there was no error.

        Raises StaleHandle if the right to write has ended. If it ends inside the block the extent is given to nobody
        before the block's end, even if this process is stopped meanwhile.
        """
        self._begin_writing(handle)
        try:
            yield self.view(handle)
            self._seal(handle)
        finally:
            self._locks.release(handle.offset, extent_nbytes(handle.nbytes))

    def write(self, handle: Handle, payload: bytes | memoryview) -> None:
        """Copy ``payload`` (exactly handle.nbytes) into the extent and seal it. As ``writing``, and faster."""
        self._begin_writing(handle)
        try:
            start = handle.offset + ALIGNMENT
            self._view[start : start + handle.nbytes] = payload
            self._seal(handle)
        finally:
            self._locks.release(handle.offset, extent_nbytes(handle.nbytes))

    def _begin_writing(self, handle: Handle) -> None:
        """Lock the extent. The caller releases the lock, unless this raises."""
        self._check_bounds(handle)
        nbytes = extent_nbytes(handle.nbytes)
        try:
            self._locks.acquire(handle.offset, nbytes)
        except BlockingIOError:
            raise StaleHandle("the cache server has just ended the right to write") from None
        try:
            # With the lock: a restart or ``erase`` from here on finds it.
            self._check_epoch(handle)
            generation, state = _HEADER.unpack_from(self._view, handle.offset)
            # A sealed extent is written again if its first writer died before it said so.
            if generation != handle.generation or state & ~_OPEN != handle.nbytes:
                raise StaleHandle(
                    f"extent at {handle.offset} was not given to generation {handle.generation} for writing"
                )
        except BaseException:  # re-raised
            self._locks.release(handle.offset, nbytes)
            raise

    def _seal(self, handle: Handle) -> None:
        """Write the generation before and after the payload. From then on ``readable`` accepts the handle."""
        fence()
        _TRAILER.pack_into(self._view, self._trailer(handle), handle.generation)
        _HEADER.pack_into(self._view, handle.offset, handle.generation, handle.nbytes)

    # For readers

    def view(self, handle: Handle) -> memoryview:
        """The payload, whatever it is now: for readers of libraries that want writable memory. ``check`` before and
        after reading. Raises StaleHandle for a handle from before a restart."""
        self._check_bounds(handle)
        start = handle.offset + ALIGNMENT
        return self._view[start : start + handle.nbytes]

    def part(self, handle: Handle, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the payload, as ``view``."""
        return self.view(handle)[start:end]

    def readable(self, handle: Handle) -> memoryview:
        """A read-only view of the payload. Raises StaleHandle."""
        self.check(handle)
        return self.view(handle).toreadonly()

    def mapping(self) -> memoryview:
        """The whole mapping, to register its pages with a device driver. Not for access to items."""
        return self._view[:]

    def check(self, handle: Handle) -> None:
        """Raise StaleHandle unless the extent is sealed with this handle; call again after a long read."""
        # Both ways: what was read before this call was read before the header, and what follows is read after it.
        fence()
        self._check_bounds(handle)
        header = _HEADER.unpack_from(self._view, handle.offset)
        trailer = _TRAILER.unpack_from(self._view, self._trailer(handle))[0]
        fence()
        if header != (handle.generation, handle.nbytes) or trailer != handle.generation:
            raise StaleHandle(f"extent at {handle.offset} does not carry generation {handle.generation}")

    def close(self) -> None:
        """Close the descriptor and unmap. Views that were handed out keep the mapping alive until they are freed."""
        self._view.release()
        with suppress(BufferError):
            self._map.close()
        self._locks.close()
        os.close(self.fd)

    def _trailer(self, handle: Handle) -> int:
        return handle.offset + ALIGNMENT + handle.nbytes

    def _check_bounds(self, handle: Handle) -> None:
        if handle.offset < 0 or handle.nbytes < 0 or handle.offset % ALIGNMENT:
            raise StaleHandle("malformed handle")
        if handle.offset + extent_nbytes(handle.nbytes) > self.nbytes:
            raise StaleHandle("handle reaches beyond the arena")
        self._check_epoch(handle)

    def _check_epoch(self, handle: Handle) -> None:
        epoch = _EPOCH.unpack_from(self._view, self.nbytes)[0]
        if epoch and not epoch <= handle.generation < epoch + GENERATIONS:
            raise StaleHandle("handle from before the cache server's restart")
