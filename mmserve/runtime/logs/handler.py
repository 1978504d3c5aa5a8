"""Writes log lines to stderr without failing, and without waiting for long, whatever is at the other end.

A full disk, a closed pipe or a reader that has stopped must take down neither a process nor a request. A line that
cannot be written is dropped and counted. The count is logged once there is room again.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import time

WAIT_S = 0.02
"""How long a line waits for a slow reader. After a line was dropped the next ones do not wait, until one is written."""
_CHUNK_NBYTES = select.PIPE_BUF
"""A pipe that is ready to be written has room for as much."""


class LogHandler(logging.Handler):
    """Writes to the descriptor ``fd``, which stays open. Thread-safe, as all handlers are."""

    def __init__(self, fd: int, wait_s: float = WAIT_S) -> None:
        super().__init__()
        self._own_fd = _own_description(fd)
        self._fd = fd if self._own_fd is None else self._own_fd
        self._wait_s = wait_s
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLOUT)
        self._cut = b""
        """The rest of a line of which only the beginning could be written."""
        self._num_lost = 0
        self._reason = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record's line, after what earlier ones have left, or count it as lost."""
        try:
            line = self._line(record)
        except Exception:  # noqa: BLE001 - a bug of the caller (arguments that do not fit the text), which goes on
            return self.handleError(record)
        self._cut = self._write(self._cut)
        if self._num_lost and not self._cut and self._begin(self._line(self._lost())):
            self._num_lost = 0
        if self._cut or self._num_lost or not self._begin(line):
            self._num_lost += 1

    def close(self) -> None:
        """Close what this object has opened."""
        if self._own_fd is not None:
            os.close(self._own_fd)
            self._own_fd = None
        super().close()

    def _line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(errors="backslashreplace")

    def _lost(self) -> logging.LogRecord:
        text = "%d lines of this log could not be written and are lost: %s"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, (self._num_lost, self._reason), None)
        record.request = ""  # as a filter sets it in other records (log.RequestIdFilter)
        return record

    def _begin(self, line: bytes) -> bool:
        """Write ``line``, if possible all of it. False if nothing was written."""
        left = self._write(line)
        if len(left) == len(line):
            return False
        self._cut = left
        return True

    def _write(self, data: bytes) -> bytes:
        """Returns what could not be written."""
        deadline_s = time.monotonic() + (0 if self._num_lost else self._wait_s)
        while data:
            if not self._poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000):
                self._reason = "nothing reads it"
                break
            try:
                data = data[os.write(self._fd, data[:_CHUNK_NBYTES]) :]
            except BlockingIOError:
                continue  # another process has just taken the room
            except OSError as error:
                self._reason = error.strerror or str(error)
                break
        return data


def _own_description(fd: int) -> int | None:
    """Another description of the same pipe or terminal, whose writes never wait; None if there can be none.

    The mode belongs to the description, which other programs may share: theirs must not change. A file needs none, and
    would be written from its start.
    """
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)):
        return None
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None  # another user's, for instance
