"""An image's compressed bytes in the arena: putting them there, comparing with them. Knows no lease. Blocking."""

from __future__ import annotations

import numpy as np

from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.media import Handle
from mmserve.runtime.errors import Unavailable

_LARGE_NBYTES = 256 << 10
"""What is smaller is copied sooner (at most 30 us) than the interpreter's lock is given away and had again."""


def put(arena: Arena, place: Handle, content: bytes) -> None:
    """Write and seal. Raises Unavailable when the place is from before a restart of the cache server."""
    try:
        if len(content) < _LARGE_NBYTES:
            arena.write(place, content)
            return
        # numpy copies without the interpreter's lock: threads copy side by side and the event loop goes on.
        np.frombuffer(arena.writable(place), np.uint8)[:] = np.frombuffer(content, np.uint8)
        arena.seal(place)
    except StaleHandle as stale:
        raise Unavailable("the media cache was restarted", retry_after_s=1.0) from stale


def differs(arena: Arena, place: Handle, content: bytes) -> bool:
    """Are other bytes than ``content`` there? False also when they are gone, which they may be at any moment."""
    try:
        # The one memcmp between bytes and a view that copies nothing: comparing the view itself goes byte by byte.
        same = place.nbytes == len(content) and content.startswith(arena.readable(place))
        arena.check(place)
    except StaleHandle:
        return False
    return not same
