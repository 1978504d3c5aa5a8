"""The metrics of one process in a file that the process maps: written like memory, read by the metrics server.

Nothing is sent, so nothing is lost while the metrics server is slow, stopped or restarted, and nothing counts twice. A
process that is restarted finds the file of its predecessor, even of one that was killed, and goes on counting in it.

Layout: a header (magic, used bytes, both uint64), then records. A record is the length of its key and its number of
values (uint32 each), the key (msgpack of name and labels) padded to 8 bytes, and the values (float64). Records are only
appended; ``used bytes`` rises after a record is complete. All values are aligned, so that a reader sees whole numbers.
"""

from __future__ import annotations

import fcntl
import logging
import math
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

Key = tuple[str, tuple[str, ...]]
"""Name and label values of a series."""
FILE_NBYTES = 256 * 1024
"""Room for about 2,000 series. It is allocated at once: a full disk must not fail a later write, which is fatal."""
_MAGIC = int.from_bytes(b"mmserve1", "little")
_HEADER = struct.Struct("<QQ")
_RECORD = struct.Struct("<II")
_MAX_FILES = 64
"""Processes with one name at once: one, and for a while its successor."""
_decoder = msgspec.msgpack.Decoder(Key)
logger = logging.getLogger(__name__)


class MetricsFile:
    """The file of this process. ``values[at]`` for ``at`` from ``slot`` on are the values of a series.

    Its lock is held as long as the process lives, which tells a reader that its gauges are current.
    """

    def __init__(self, directory: Path, process: str) -> None:
        self._fd = _claim(directory, process)
        self._map = _mapped(self._fd, process)
        self._bytes = memoryview(self._map)
        self.values = self._bytes.cast("d")
        self._words = self._bytes.cast("Q")
        if self._words[0] != _MAGIC:
            self._words[1], self._words[0] = _HEADER.size, _MAGIC
        self.slots: dict[Key, tuple[int, int]] = {key: (at, count) for key, at, count in _records(self._bytes)}
        """First value and number of values of each series."""

    def slot(self, key: Key, num_values: int) -> int | None:
        """Index of the first value of a series, which is added with zeros if it is new. None if the file is full."""
        if (found := self.slots.get(key)) is not None:
            return found[0]
        name, used = msgspec.msgpack.encode(key), self._words[1]
        at = (used + _RECORD.size + len(name) + 7) // 8
        end = 8 * (at + num_values)
        if end > len(self._bytes):
            return None
        _RECORD.pack_into(self._bytes, used, len(name), num_values)
        self._bytes[used + _RECORD.size : used + _RECORD.size + len(name)] = name
        self._words[1] = end
        self.slots[key] = at, num_values
        return at

    def close(self) -> None:
        for view in (self.values, self._words, self._bytes):
            view.release()
        self._map.close()
        os.close(self._fd)


def _claim(directory: Path, process: str) -> int:
    """Open and lock the file of ``process``; while a predecessor lives, another one."""
    directory.mkdir(exist_ok=True)
    for number in range(_MAX_FILES):
        fd = os.open(directory / f"{process}.{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        os.close(fd)
    raise RuntimeError(f"{_MAX_FILES} processes called {process} hold their metrics files")


def _mapped(fd: int, process: str) -> mmap.mmap:
    """The file's memory, or private memory if the disk is full: the process then works without visible metrics."""
    try:
        os.posix_fallocate(fd, 0, FILE_NBYTES)
    except OSError as error:
        logger.warning("no room for the metrics of %s, /metrics will lack them: %s", process, error.strerror)
        return mmap.mmap(-1, FILE_NBYTES)
    return mmap.mmap(fd, FILE_NBYTES)


@dataclass(frozen=True)
class Stored:
    """What one file has. ``live``: its process runs, so its gauges count."""

    live: bool
    values: dict[Key, tuple[float, ...]] = field(default_factory=dict)


def read_all(directory: Path) -> list[Stored]:
    """The metrics of all processes, also of ended ones."""
    return [_read(path) for path in sorted(directory.iterdir())] if directory.is_dir() else []


def _read(path: Path) -> Stored:
    with path.open("rb") as file:
        stored = Stored(live=_is_locked(file.fileno()))
        data = memoryview(file.read().ljust(_HEADER.size, b"\0"))
    numbers = data[: len(data) // 8 * 8].cast("d")
    for key, at, count in _records(data):
        stored.values[key] = tuple(numbers[at : at + count])
    return stored


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _records(data: memoryview) -> Iterator[tuple[Key, int, int]]:
    """Key, index of the first value, and number of values of each series. Ends at a record that is damaged."""
    magic, used = _HEADER.unpack_from(data)
    used, at = min(used, len(data)) if magic == _MAGIC else 0, _HEADER.size
    while at + _RECORD.size <= used:
        key_nbytes, count = _RECORD.unpack_from(data, at)
        first = math.ceil((at + _RECORD.size + key_nbytes) / 8)
        if not key_nbytes or 8 * (first + count) > used:
            return
        try:
            key = _decoder.decode(data[at + _RECORD.size : at + _RECORD.size + key_nbytes])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        yield key, first, count
        at = 8 * (first + count)
