"""The shared-memory arena: one anonymous memory file that every process maps. Moves bytes, owns no table.

Who may write where is the cache server's business. Each extent carries its generation before and after the
payload, so that a reader with an old handle gets a typed miss and never another item's bytes:

    extent.offset -> | generation, nbytes (64 B header) | payload ... | generation (8 B) | padding to 64 |

Behind the extents stands the first generation of the cache server's present life: handles from an earlier life
are misses for readers and writers alike.

The memory file has no name: the kernel frees it with the last process, whatever kills them. It is not in /dev/shm and
not limited by its size, but by free memory and the limit of the control group (container).
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from contextlib import suppress

from mmserve.messages.media import Handle

ALIGNMENT = 64
_HEADER = struct.Struct("<QQ")
_TRAILER = struct.Struct("<Q")
_EPOCH = struct.Struct("<Q")
_UP_TO_NEXT = ALIGNMENT + _TRAILER.size + ALIGNMENT - 1
"""Header and trailer, and what rounds up to the next multiple of ALIGNMENT, a power of two."""
HUGE_PAGE_NBYTES = 2 << 20
_HUGE_PAGES = os.MFD_HUGETLB | os.MFD_HUGE_2MB
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not among mmap's own names
GENERATIONS = 1 << 40
"""Generations of one epoch, from its first on."""


class StaleHandle(Exception):
    """The extent was reused, never written, or the handle is forged: a miss."""


def extent_nbytes(payload_nbytes: int) -> int:
    """Arena bytes that a payload of this size occupies, header, trailer and alignment included."""
    return (payload_nbytes + _UP_TO_NEXT) & -ALIGNMENT


def file_nbytes(arena_nbytes: int, *, huge_pages: bool) -> int:
    """Bytes of the memory file of an arena of this size."""
    page_nbytes = HUGE_PAGE_NBYTES if huge_pages else 1
    return -(-(arena_nbytes + _EPOCH.size) // page_nbytes) * page_nbytes


class Arena:
    """One mapping of the memory file. ``fd`` stays open and may be inherited by child processes."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._map = mmap.mmap(fd, nbytes + _EPOCH.size)
        self._view = memoryview(self._map)

    @classmethod
    def create(cls, nbytes: int, *, huge_pages: bool = False) -> Arena:
        """Make the memory file. Raises OSError when the machine cannot give that much: ENOSPC, ENOMEM, or EFBIG where
        the size of files is limited. Of huge pages, which must have been reserved, a whole number is taken.

        Memory files have no quota of their own: asking for more than is free ends in the kernel's OOM killer, so
        whoever calls this has looked at what is free; here only the impossible is refused.
        """
        if nbytes > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        fd = os.memfd_create("mmserve-arena", os.MFD_CLOEXEC | (_HUGE_PAGES if huge_pages else 0))
        try:
            os.posix_fallocate(fd, 0, file_nbytes(nbytes, huge_pages=huge_pages))
            return cls.attach(fd)
        except BaseException:  # nothing is swallowed: whatever ends this, Ctrl-C too, must not leave the memory taken
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int) -> Arena:
        """Map a memory file inherited from the supervisor."""
        return cls(fd, os.fstat(fd).st_size - _EPOCH.size)

    def map_all(self) -> None:
        """Make every page known to this process now (some tenths of a second a GiB), for those that write a lot.

        A page's first touch costs more than writing it. Older kernels leave it at that.
        """
        with suppress(OSError):
            self._map.madvise(_MADV_POPULATE_WRITE)

    def begin_epoch(self, first_generation: int) -> None:
        """For the cache server at its start: only generations from this one on are accepted from now on."""
        _EPOCH.pack_into(self._view, self.nbytes, first_generation)

    def erase(self, handle: Handle) -> None:
        """For the cache server when it frees an extent: the handle is a miss, whatever is put there later."""
        self._check_bounds(handle)
        _HEADER.pack_into(self._view, handle.offset, 0, 0)
        _TRAILER.pack_into(self._view, self._trailer(handle), 0)

    def writable(self, handle: Handle) -> memoryview:
        """The payload region, for its one writer; call ``seal`` when all bytes are there. Raises StaleHandle."""
        self._check_bounds(handle)
        start = handle.offset + ALIGNMENT
        return self._view[start : start + handle.nbytes]

    def seal(self, handle: Handle) -> None:
        """Stamp the generation on both ends: from now on ``readable`` accepts the handle."""
        self._check_bounds(handle)
        _TRAILER.pack_into(self._view, self._trailer(handle), handle.generation)
        _HEADER.pack_into(self._view, handle.offset, handle.generation, handle.nbytes)

    def write(self, handle: Handle, payload: bytes | memoryview) -> None:
        """Copy ``payload`` (exactly handle.nbytes) into the extent and seal it."""
        self.writable(handle)[:] = payload
        self.seal(handle)

    def readable(self, handle: Handle) -> memoryview:
        """A read-only view of the payload. Raises StaleHandle."""
        self.check(handle)
        start = handle.offset + ALIGNMENT
        return self._view[start : start + handle.nbytes].toreadonly()

    def whole(self) -> memoryview:
        """All of the mapping, for a device that is to know its pages; nobody reads or writes items through it."""
        return self._view[:]

    def check(self, handle: Handle) -> None:
        """Raise StaleHandle unless the extent is sealed with this handle; call again after a long read."""
        self._check_bounds(handle)
        header = _HEADER.unpack_from(self._view, handle.offset)
        trailer = _TRAILER.unpack_from(self._view, self._trailer(handle))[0]
        if header != (handle.generation, handle.nbytes) or trailer != handle.generation:
            raise StaleHandle(f"extent at {handle.offset} does not carry generation {handle.generation}")

    def close(self) -> None:
        """Close the descriptor and unmap; while views that were handed out still live, that is left to the last."""
        self._view.release()
        with suppress(BufferError):
            self._map.close()
        os.close(self.fd)

    def _trailer(self, handle: Handle) -> int:
        return handle.offset + ALIGNMENT + handle.nbytes

    def _check_bounds(self, handle: Handle) -> None:
        if handle.offset < 0 or handle.nbytes < 0 or handle.offset % ALIGNMENT:
            raise StaleHandle("malformed handle")
        if handle.offset + extent_nbytes(handle.nbytes) > self.nbytes:
            raise StaleHandle("handle reaches beyond the arena")
        epoch = _EPOCH.unpack_from(self._view, self.nbytes)[0]
        if epoch and not epoch <= handle.generation < epoch + GENERATIONS:
            raise StaleHandle("handle from before the cache server's restart")
