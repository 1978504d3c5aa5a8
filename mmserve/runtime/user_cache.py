"""The directory for what can be made again (kernels, choices, what GGUF files say), and locks on files in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path


def directory() -> Path:
    """The first writable candidate. It must belong to this user, because its files are executed. Raises OSError.

    Not of ``tempfile.gettempdir``, which writes a file to try a directory: it fails while disks are full.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    for candidate in (Path(home) / "mmserve", Path(os.environ.get("TMPDIR") or "/tmp") / f"mmserve-{os.getuid()}"):
        with contextlib.suppress(OSError):
            candidate.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = candidate.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and os.access(candidate, os.W_OK):
                return candidate
    raise PermissionError("there is no cache directory of our own to write to")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Within the block no other process holds the lock on ``path``. Waits for it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
