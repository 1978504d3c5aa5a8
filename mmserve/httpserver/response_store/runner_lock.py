"""Which HTTP workers live: each holds a lock on a file of its own, which the kernel releases when the process ends.

A response in the background names the worker that makes it. If nobody holds that worker's lock, nobody makes it.
"""

from __future__ import annotations

import fcntl
import os
import uuid
from pathlib import Path


class RunnerLock:
    """The lock of this process. ``name``: never used again by another one; begins with the number of the worker."""

    def __init__(self, store: Path, worker: int) -> None:
        self.name = f"{worker}.{uuid.uuid4().hex}"
        self._path = _path(store, self.name)
        self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def worker_of(name: str) -> int:
    """Number of the HTTP worker with this name."""
    return int(name.partition(".")[0])


def is_alive(store: Path, name: str) -> bool:
    """False if the process with this name has ended. Removes its file."""
    path = _path(store, name)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    path.unlink(missing_ok=True)
    return False


def _path(store: Path, name: str) -> Path:
    """Beside the store, so that all who share it find the lock."""
    return store.resolve().with_name(f"responses-runner-{name}")
