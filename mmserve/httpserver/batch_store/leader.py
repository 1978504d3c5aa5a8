"""Which process runs the batches of a directory: the one that holds a lock, which the kernel gives to the next process
that waits for it when the holder ends, however it ends. Any process can wake the holder through a named pipe."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import threading
from pathlib import Path


class Leader:
    """For one event loop. Waits for the lock from ``open`` to ``close``, in a thread."""

    def __init__(self, directory: Path) -> None:
        self._lock_path = directory / "runner.lock"
        self._pipe_path = directory / "wake"
        self._wake = asyncio.Event()
        self._elected = asyncio.Event()
        self._pipe_fd = -1
        self._state = threading.Lock()
        self._lock_fd: int | None = None
        self._closed = False

    def open(self) -> None:
        """Begin to wait. Raises OSError."""
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self._pipe_path, 0o600)
        # Only a thread can wait for a lock. It is a daemon, so that it does not keep the process.
        arguments = (fd, asyncio.get_running_loop())
        threading.Thread(target=self._lock, args=arguments, name="batch leader", daemon=True).start()

    def _lock(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with self._state:
            if self._closed:
                os.close(fd)
                return
            self._lock_fd = fd
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            loop.call_soon_threadsafe(self._elected.set)

    async def elected(self) -> None:
        """Wait until this process holds the lock."""
        await self._elected.wait()
        if self._pipe_fd < 0:
            # For both directions, so that the pipe never ends. What was written before is found in the database.
            self._pipe_fd = os.open(self._pipe_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            asyncio.get_running_loop().add_reader(self._pipe_fd, self._read)

    async def woken(self) -> None:
        """Wait until a process has called ``wake`` since the last call. For the holder."""
        await self._wake.wait()
        self._wake.clear()

    def wake(self) -> None:
        """Wake the holder, if there is one; another that comes looks by itself."""
        with contextlib.suppress(OSError):  # nobody reads, or it is full of such bytes
            fd = os.open(self._pipe_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, b"w")
            finally:
                os.close(fd)

    def close(self) -> None:
        """Give the lock to the next process; idempotent."""
        if self._pipe_fd >= 0:
            asyncio.get_running_loop().remove_reader(self._pipe_fd)
            os.close(self._pipe_fd)
            self._pipe_fd = -1
        with self._state:
            self._closed = True
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe_fd, 4096)
        self._wake.set()
