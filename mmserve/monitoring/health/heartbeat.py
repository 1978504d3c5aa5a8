"""Heartbeats: each process writes its own into a file that it has mapped; supervisor and health server read the file.

A file rather than messages: a frozen process leaves its last heartbeat there, a reader that was frozen finds no
backlog, and a heartbeat costs a microsecond, so it can follow every unit of work.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.runtime.memory.mapped_file import map_file

INTERVAL_S = 1.0
_RECORD = struct.Struct("@qddqq")
"""pid, beat_s, progress_s, progress, busy. Each field has 8 bytes at a multiple of 8, so it is written at once."""
_PID, _BEAT_S, _PROGRESS_S, _PROGRESS, _BUSY = range(5)
_MAX_READS = 100


@dataclass(frozen=True)
class Beat:
    """The last heartbeat of a process. Times are of the monotonic clock, which all processes share."""

    pid: int
    beat_s: float
    progress_s: float
    """When the process last finished some work, or got work after a time without any."""
    progress: int
    """Number of heartbeats with progress."""
    busy: bool
    """True if there is work on which the process should make progress."""


class HeartbeatSender:
    """Call ``beat`` in every iteration of the main loop, at least every INTERVAL_S while idle, and within a long unit
    of work whenever a part of it is done. For one thread at a time."""

    def __init__(self, endpoints: Endpoints, process: str) -> None:
        """Raises OSError if the disk is full."""
        self._file = map_file(endpoints.heartbeat(process), _RECORD.size)
        self._file[:] = bytes(_RECORD.size)  # a predecessor's heartbeat is not this process's
        self._whole_numbers = memoryview(self._file).cast("q")
        self._times = memoryview(self._file).cast("d")
        self._pid = os.getpid()
        self._progress = 0
        self._progress_s = 0.0
        self._busy = False

    def beat(self, *, busy: bool, progressed: bool = True) -> None:
        """``busy``: there is work. ``progressed``: some work was finished since the last call."""
        now_s = time.monotonic()
        self._progress += progressed
        if progressed or not (busy and self._busy):
            self._progress_s = now_s
        self._busy = busy
        # Field by field: Struct.pack_into writes zeros first, and a reader would take the process for silent. In this
        # order whatever a frozen writer has left is a heartbeat too, and nobody is busy with the progress of long ago.
        self._times[_PROGRESS_S], self._whole_numbers[_PROGRESS] = self._progress_s, self._progress
        self._whole_numbers[_BUSY], self._times[_BEAT_S] = busy, now_s
        self._whole_numbers[_PID] = self._pid

    def close(self) -> None:
        self._whole_numbers.release()
        self._times.release()
        self._file.close()


def read_beat(path: Path) -> Beat | None:
    """The last heartbeat in the file (``Endpoints.heartbeat``); None before the first one.

    Raises OSError if the file cannot be read, for instance for want of descriptors.
    """
    with contextlib.suppress(FileNotFoundError):
        record = _steady_bytes(path)
        if len(record) == _RECORD.size:
            pid, beat_s, progress_s, progress, busy = _RECORD.unpack(record)
            return Beat(pid, beat_s, progress_s, progress, bool(busy)) if pid else None
    return None


def _steady_bytes(path: Path) -> bytes:
    """The file's bytes, read until two reads in a row are equal: one alone may have met the writer half-way."""
    record = path.read_bytes()
    for _ in range(_MAX_READS):
        if record == (again := path.read_bytes()):
            break
        record = again
    return record
