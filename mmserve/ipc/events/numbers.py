"""The frame with a batch's number. Pure.

Each start of a publisher begins with 0, as vLLM's does: llm-d takes a number that goes back for a restart, and asks for
a replay from 0, which it believes only if that begins with 0.
"""

from __future__ import annotations

import struct

_NUMBER = struct.Struct(">q")
END_OF_REPLAY = _NUMBER.pack(-1)


def number_bytes(number: int) -> bytes:
    """The frame."""
    return _NUMBER.pack(number)


def number_of(frame: bytes) -> int | None:
    """The number in such a frame; None if it is none."""
    return int(_NUMBER.unpack(frame)[0]) if len(frame) == _NUMBER.size else None
