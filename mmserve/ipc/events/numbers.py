"""The frame with a batch's number. Pure."""

from __future__ import annotations

import struct

_NUMBER = struct.Struct(">q")
END_OF_REPLAY = _NUMBER.pack(-1)
BATCHES_OF_A_START = 1 << 40
"""More than a process publishes. The numbers of a restarted one begin above those of the one before, so every
subscriber sees a gap and asks for what it lacks, which begins with an event that says that nothing is held."""


def number_bytes(number: int) -> bytes:
    """The frame."""
    return _NUMBER.pack(number)


def number_of(frame: bytes) -> int | None:
    """The number in such a frame; None if it is none."""
    return int(_NUMBER.unpack(frame)[0]) if len(frame) == _NUMBER.size else None
