"""A step of the GPU battery whose checks fail in every way. Without torch, so that its processes start at once."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from benchmarks.gpu.checks import Checks, Figures, Settings, Skipped


def run(checks: Checks, settings: Settings) -> None:
    """``settings.earlier`` names a folder in which the step leaves its traces."""
    folder = Path(settings.earlier)
    if "import" in settings.only_families:
        raise RuntimeError("nothing can be prepared")
    if "hang" in settings.only_families:
        _never_end(checks, folder)
    if "together" in settings.only_families:
        _together(checks, folder)
        return
    checks.run("good", lambda: _count(folder))
    checks.run("wrong", _wrong)
    checks.run("skipped", _skipped)
    checks.run("missing", _missing)
    checks.run("own missing", _own_missing)
    checks.run("exits", lambda: os._exit(3))
    checks.run("killed", lambda: os.kill(os.getpid(), signal.SIGKILL))
    checks.run("hangs", threading.Event().wait, limit_s=0.3)
    checks.run("good at the end", lambda: {"figure": 2})


def _never_end(checks: Checks, folder: Path) -> None:
    """One check passes, one never ends and leaves a process behind, which holds a lock for as long as it lives."""
    checks.run("good", lambda: _count(folder))
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stays = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
        subprocess.Popen([sys.executable, "-c", stays], pass_fds=[lock.fileno()])
    checks.run("never", threading.Event().wait, limit_s=1000)


def _together(checks: Checks, folder: Path) -> None:
    """The process that makes a check is in a file of its name. Two of the checks pass only where they are made last."""
    checks.run("by all", lambda: _trace(folder, "by all"), by_all=True)
    for name in ("first", "second", "third"):
        checks.run(name, lambda name=name: _trace(folder, name))  # type: ignore[misc]
    checks.run("timed", lambda: _trace(folder, "timed"), alone=True)
    checks.run("fails at first", lambda: _fail_once(folder, "fails at first"))
    checks.run("ends at first", lambda: _fail_once(folder, "ends at first", status=3))
    checks.run("behind it", lambda: _trace(folder, "behind it"))


def _trace(folder: Path, name: str) -> Figures:
    with (folder / name).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return {"process": os.getpid()}


def _fail_once(folder: Path, name: str, status: int = 0) -> Figures:
    again = (folder / name).exists()
    found = _trace(folder, name)
    if not again and status:
        os._exit(status)
    assert again, "the others have the device"
    return found


def _count(folder: Path) -> Figures:
    """How often it was made, in a file."""
    file = folder / "made"
    made = file.read_text() if file.exists() else ""
    file.write_text(f"{made}x")
    return {"figure": 1}


def _wrong() -> Figures:
    raise AssertionError("two is not three")


def _skipped() -> Figures:
    raise Skipped("needs a moon")


def _missing() -> Figures:
    import a_package_that_is_not_there  # type: ignore[import-not-found]

    return {"found": str(a_package_that_is_not_there)}


def _own_missing() -> Figures:
    import mmserve.a_module_that_is_not_there  # type: ignore[import-not-found]

    return {"found": str(mmserve.a_module_that_is_not_there)}
