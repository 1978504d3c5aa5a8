"""Output and error file of a batch: lines are appended as they come, so that a run can go on where another stopped."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from mmserve.batch.lines import done_by

_SYNC_INTERVAL_S = 1.0
_BLOCK_NBYTES = 1 << 16


class BatchFiles:
    """``answers``: lines with status 200; ``errors``: all others, made when there is one. Blocking.

    Opening drops a last line that was not written whole. ``done``: custom_ids that have a result, and numbers of lines
    without a usable one. Raises OSError.
    """

    def __init__(self, answers: Path, errors: Path) -> None:
        self._paths = {True: answers, False: errors}
        self._fds: dict[bool, int] = {}
        self._synced_s = time.monotonic()
        self.done: set[str | int] = set()
        self.answered = self._read(answers)
        self.failed = self._read(errors)

    def write(self, answers: bytes, errors: bytes) -> None:
        """Append whole lines. They are on the disk a second later, or with ``close``."""
        for is_answer, lines in ((True, answers), (False, errors)):
            if lines:
                self._append(is_answer, lines)
        if time.monotonic() >= self._synced_s + _SYNC_INTERVAL_S:
            self.sync()

    def sync(self) -> None:
        for fd in self._fds.values():
            os.fdatasync(fd)
        self._synced_s = time.monotonic()

    def close(self) -> None:
        try:
            self.sync()
        finally:
            for fd in self._fds.values():
                os.close(fd)
            self._fds.clear()

    def _append(self, is_answer: bool, lines: bytes) -> None:
        if is_answer not in self._fds:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._fds[is_answer] = os.open(self._paths[is_answer], flags, 0o600)
        view = memoryview(lines)
        while view:
            view = view[os.write(self._fds[is_answer], view) :]

    def _read(self, path: Path) -> int:
        """Drop a torn last line; the number of the others."""
        if not path.exists():
            return 0
        count, end = 0, 0
        with open(path, "r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(end)
                    break
                end += len(line)
                count += 1
                if (name := done_by(line)) is not None:
                    self.done.add(name)
        return count


class BatchWriter:
    """Writes the lines of an event loop in a thread, many at once. An async context manager, which ends when all are
    written. The first OSError is raised by ``add`` and at the end."""

    def __init__(self, files: BatchFiles, on_written: Callable[[], None] = lambda: None) -> None:
        self._files = files
        self._waiting: list[tuple[bool, bytes]] = []
        self._wake = asyncio.Event()
        self._ends = False
        self._on_written = on_written
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> BatchWriter:
        self._task = asyncio.create_task(self._write_all(), name="batch writer")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._ends = True
        self._wake.set()
        await self._task

    def add(self, line: bytes, *, is_answer: bool) -> None:
        assert self._task is not None
        if self._task.done():
            self._task.result()
        self._waiting.append((is_answer, line))
        self._wake.set()

    async def _write_all(self) -> None:
        while not self._ends or self._waiting:
            await self._wake.wait()
            self._wake.clear()
            lines, self._waiting = self._waiting, []
            answers = b"".join(line for is_answer, line in lines if is_answer)
            errors = b"".join(line for is_answer, line in lines if not is_answer)
            await asyncio.to_thread(self._files.write, answers, errors)
            self._on_written()
