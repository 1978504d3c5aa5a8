"""The checks of one step, in its child process: each has a verdict, which is on disk before the next one begins.

A check that does not end, or that ends the process, is the one the file calls ``running``. The parent then notes it as
failed and starts the step again; checks that have a verdict are not repeated.

Several processes may make a step's checks at the same time, each a part of them. Checks that time something are made
afterwards, by one process alone.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Figures = Mapping[str, Any]
"""Names and JSON values."""
PASSED, FAILED, SKIPPED, TIMED_OUT = "pass", "fail", "skipped", "timed out"
DEVICE_LOST = 75
"""Exit status of a child whose device answers no more: later checks need another process."""
_OWN_PACKAGES = ("benchmarks", "mmserve", "tests", "training")
_REASON_CHARS = 300


class Skipped(Exception):
    """The check cannot be made here; the message says what it needs."""


class Settings(NamedTuple):
    """Of one run of the battery. Passed to children as JSON."""

    device: str = "cuda"
    """Or cpu: stand-ins for the device, with small shapes."""
    seed: int = 0
    """Of inputs, a new one for each run."""
    earlier: str = ""
    """The file with the results of earlier steps."""
    only_families: tuple[str, ...] = ()
    """Of step 3; empty: all."""

    @property
    def small(self) -> bool:
        return self.device == "cpu"


class Part(NamedTuple):
    """Of a step's checks: every ``count``-th, from the one with this index on."""

    index: int
    count: int


class Checks:
    """``path``: where verdicts are kept. ``limit_s``: of one check. ``part``: None for all checks."""

    def __init__(self, path: Path, limit_s: float, part: Part | None = None) -> None:
        self._path, self._limit_s, self._part = path, limit_s, part
        self._turn = 0
        """Of the next check that is made by one of several processes."""
        self._done: list[dict[str, Any]] = read(path)["checks"]
        self._names = {check["name"] for check in self._done}

    def run(
        self,
        name: str,
        check: Callable[[], Figures | None],
        limit_s: float | None = None,
        *,
        alone: bool = False,
        by_all: bool = False,
    ) -> None:
        """Make the check, unless it has a verdict. It passes if it returns, and its figures are kept.

        It fails if it raises, and is skipped if a package is missing or it raises Skipped. Ends the process if the
        device is lost. Of several processes one makes it; ``by_all``: each of them; ``alone``: none, because it times
        something.
        """
        if name in self._names:
            return
        self._names.add(name)
        if not (by_all or self._is_own(alone)):
            return
        self._write(running=name)
        faulthandler.dump_traceback_later(limit_s or self._limit_s, exit=True)
        started_s = time.perf_counter()
        found: dict[str, Any] = {"name": name}
        lost = False
        try:
            found["figures"] = dict(check() or {})
            found["verdict"] = PASSED
        except Skipped as reason:
            found |= {"verdict": SKIPPED, "reason": str(reason)}
        except ModuleNotFoundError as error:
            found |= _missing(error)
        except Exception as error:  # noqa: BLE001 - the boundary of one check; it is reported
            traceback.print_exc()
            found |= {"verdict": FAILED, "reason": _reason(error), "traceback": traceback.format_exc(limit=-4)}
            lost = _device_lost(error)
        finally:
            faulthandler.cancel_dump_traceback_later()
        found["seconds"] = round(time.perf_counter() - started_s, 3)
        self._done.append(found)
        self._write(running=None)
        if lost:
            sys.exit(DEVICE_LOST)

    def _is_own(self, alone: bool) -> bool:
        if self._part is None or alone:
            return self._part is None
        turn, self._turn = self._turn, self._turn + 1
        return turn % self._part.count == self._part.index

    def figures(self, name: str) -> Figures:
        """Of a check that has passed; empty if it has not."""
        return next((check.get("figures", {}) for check in self._done if check["name"] == name), {})

    def _write(self, running: str | None) -> None:
        write(self._path, {"running": running, "checks": self._done})


def read(path: Path) -> dict[str, Any]:
    """What ``Checks`` has written, or that nothing has been."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {"running": None, "checks": []}
    return found


def write(path: Path, found: Mapping[str, Any]) -> None:
    """At once: a reader sees all of it or what was there before."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(found, indent=1))
    new.replace(path)


def _missing(error: ModuleNotFoundError) -> dict[str, Any]:
    root = (error.name or "").split(".")[0]
    if root in _OWN_PACKAGES:
        return {"verdict": FAILED, "reason": _reason(error)}
    return {"verdict": SKIPPED, "reason": f"needs {root}"}


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:_REASON_CHARS]


def _device_lost(error: Exception) -> bool:
    """After most errors of CUDA every later call fails, in this process alone. What launches a kernel may say so by an
    error of its own, so the device is asked too."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    if isinstance(error, torch.AcceleratorError):
        return True
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
