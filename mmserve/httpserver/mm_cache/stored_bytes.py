"""Writes an image's compressed bytes into the arena, and compares stored bytes with others. Blocking, thread-safe."""

from __future__ import annotations

import numpy as np

from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.media import Handle
from mmserve.runtime.errors import Unavailable
from mmserve.runtime.retry_after import AFTER_CACHE_RESTART_S

_NO_GIL_NBYTES = 256 << 10
"""From this size on, the copy releases the GIL. A smaller copy (at most 30 us) costs less than giving up the GIL and
getting it back."""


def write(arena: Arena, handle: Handle, content: bytes) -> None:
    """Write and seal. Raises Unavailable when the right to write has ended: the cache server was restarted, or has not
    heard from this process for long."""
    try:
        if len(content) < _NO_GIL_NBYTES:
            arena.write(handle, content)
            return
        # numpy copies without the GIL: several threads copy at once, and the event loop keeps running.
        with arena.writing(handle) as extent:
            np.frombuffer(extent, np.uint8)[:] = np.frombuffer(content, np.uint8)
    except StaleHandle as stale:
        raise Unavailable(
            "the media cache has taken back the room for an image before it was written",
            retry_after_s=AFTER_CACHE_RESTART_S,
        ) from stale


def differs(arena: Arena, handle: Handle, content: bytes) -> bool:
    """True if the stored bytes are not ``content``. False if they are equal or were evicted, even during the call."""
    try:
        # bytes.startswith is a memcmp without a copy. Comparing the memoryview itself goes byte by byte.
        same = handle.nbytes == len(content) and content.startswith(arena.readable(handle))
        arena.check(handle)
    except StaleHandle:
        return False
    return not same
