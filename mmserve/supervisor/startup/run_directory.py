"""The run directory of a server: private to the user, with a path short enough for sockets, removed at the end.

A running server holds a lock on the directory. A directory whose lock is free belongs to a dead server and is swept.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.runtime.errors import StartupError

PREFIX = "mmserve-run-"
_UNLOCKED_PREFIX = ".mmserve-run-"
_SOCKET_PATH_LIMIT = 107
_LONGEST_NAME = 24
_ROOM_NBYTES = 4 << 20
"""More than the files of all processes take; most are metrics, 256 KiB a process."""


@contextlib.contextmanager
def run_directory(parents: list[Path] | None = None) -> Iterator[Path]:
    """Create the directory (mode 0700) and remove it on exit. Sweeps directories of dead servers first.

    Raises StartupError if no parent can be used.
    """
    # Created and locked under a name that no sweep matches, then renamed, so that no sweep sees it without a lock.
    unlocked = _create(_default_parents() if parents is None else parents)
    lock = _locked(unlocked)
    assert lock is not None
    path = unlocked.rename(unlocked.with_name(unlocked.name.replace(_UNLOCKED_PREFIX, PREFIX, 1)))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def health_urls(parents: list[Path] | None = None) -> list[str]:
    """Health ports of this user's servers, also of some that are dead."""
    urls = []
    for parent in dict.fromkeys(_default_parents() if parents is None else parents):
        for path in sorted(parent.glob(f"{PREFIX}*")):
            with contextlib.suppress(OSError):
                if path.stat().st_uid == os.getuid():
                    urls.append(Endpoints(path).health_url.read_text())
    return urls


def sweep(parent: Path) -> None:
    """Remove the run directories of dead servers of this user."""
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.getuid():
                continue
            if (lock := _locked(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: Path) -> int | None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(directory)
        return None
    return directory


def _default_parents() -> list[Path]:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    temporary = os.environ.get("TMPDIR")  # tempfile.gettempdir() fails while disks are full
    return [*(Path(each) for each in (runtime, temporary) if each), Path("/tmp")]


def _create(parents: list[Path]) -> Path:
    """A new directory in the first parent that has room for its files."""
    full = []
    for parent in _usable(parents):
        sweep(parent)
        try:
            return _with_room(parent)
        except OSError as error:
            full.append(f"{parent} ({error.strerror})")
    if full:
        raise StartupError(
            f"no room for {_ROOM_NBYTES >> 20} MiB of sockets and counters in {', '.join(full)}: "
            "free some, or set XDG_RUNTIME_DIR or TMPDIR to a directory that has it"
        )
    raise StartupError(
        f"no writable directory with a short name for sockets among {', '.join(map(str, parents))}: "
        "set XDG_RUNTIME_DIR or TMPDIR to one"
    )


def _usable(parents: list[Path]) -> Iterator[Path]:
    for parent in dict.fromkeys(parents):
        longest = len(os.fsencode(parent.absolute())) + len(f"/{PREFIX}12345678/") + _LONGEST_NAME
        if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK) and longest <= _SOCKET_PATH_LIMIT:
            yield parent.absolute()


def _with_room(parent: Path) -> Path:
    """A new directory. Raises OSError, and leaves nothing, if the disk has no room for its files."""
    directory = Path(tempfile.mkdtemp(prefix=_UNLOCKED_PREFIX, dir=parent))
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM_NBYTES)
    except OSError:
        directory.rmdir()
        raise
    return directory
