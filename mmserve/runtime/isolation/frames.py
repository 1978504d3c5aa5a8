"""Frames on the pipes between a process and its child: a length (uint64, little-endian) and so many bytes."""

from __future__ import annotations

import struct
from typing import IO

_LENGTH = struct.Struct("<Q")


def write_frame(file: IO[bytes], frame: bytes | memoryview) -> None:
    """Raises BrokenPipeError if the other side has closed the pipe."""
    file.write(_LENGTH.pack(len(frame)))
    file.write(frame)
    file.flush()


def read_frame(file: IO[bytes]) -> bytes:
    """The next frame. Raises EOFError if the other side has closed the pipe, also within a frame."""
    return _read_exactly(file, _LENGTH.unpack(_read_exactly(file, _LENGTH.size))[0])


def _read_exactly(file: IO[bytes], nbytes: int) -> bytes:
    data = file.read(nbytes)
    if len(data) < nbytes:
        raise EOFError
    return data
