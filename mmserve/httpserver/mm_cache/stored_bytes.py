"""Writes an image's compressed bytes into the arena, and compares stored bytes with others. Blocking, thread-safe."""

from __future__ import annotations

import numpy as np

from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.media import Handle
from mmserve.runtime.errors import Unavailable

_NO_GIL_NBYTES = 256 << 10
"""From this size on, the copy releases the GIL. A smaller copy (at most 30 us) costs less than giving up the GIL and
getting it back."""


def write(arena: Arena, handle: Handle, content: bytes) -> None:
    """Write and seal. Raises Unavailable when the handle is from before a restart of the cache server."""
    try:
        if len(content) < _NO_GIL_NBYTES:
            arena.write(handle, content)
            return
        # numpy copies without the GIL: several threads copy at once, and the event loop keeps running.
        np.frombuffer(arena.writable(handle), np.uint8)[:] = np.frombuffer(content, np.uint8)
        arena.seal(handle)
    except StaleHandle as stale:
        raise Unavailable("the media cache was restarted while an image was written", retry_after_s=1.0) from stale


def differs(arena: Arena, handle: Handle, content: bytes) -> bool:
    """True if the stored bytes are not ``content``. False if they are equal or were evicted, even during the call."""
    try:
        # bytes.startswith is a memcmp without a copy. Comparing the memoryview itself goes byte by byte.
        same = handle.nbytes == len(content) and content.startswith(arena.readable(handle))
        arena.check(handle)
    except StaleHandle:
        return False
    return not same
