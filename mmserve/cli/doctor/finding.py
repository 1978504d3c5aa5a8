"""What a check has found, and how checks are run: each with a time limit, none able to end the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

Status = Literal["ok", "warning", "failure"]
_TIMEOUT_S = 90.0
"""Of a check; the slowest imports torch on a busy machine."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """``found``: the facts. ``do``: what the user can do about a warning or failure; empty for ok."""

    name: str = ""
    status: Status
    found: str
    do: str = ""
    seconds: float = 0.0


class Check(NamedTuple):
    """``run`` returns a finding without name and seconds."""

    name: str
    run: Callable[[], Finding]


def ok(found: str) -> Finding:
    return Finding(status="ok", found=found)


def warning(found: str, do: str) -> Finding:
    """The server works, but slower or less safely than it could."""
    return Finding(status="warning", found=found, do=do)


def failure(found: str, do: str) -> Finding:
    """The server does not work."""
    return Finding(status="failure", found=found, do=do)


def run_checks(checks: Iterable[Check], timeout_s: float = _TIMEOUT_S) -> Iterator[Finding]:
    """Run one check after another, and yield what each has found. One that raises or takes too long is a failure."""
    for check in checks:
        started_s = time.monotonic()
        found: list[Finding] = []
        # A check that hangs, as on a dead network disk, cannot be ended, only left behind.
        thread = threading.Thread(target=_run, args=(check, found), name=check.name, daemon=True)
        thread.start()
        thread.join(timeout_s)
        finding = found[0] if found else failure(f"no result within {timeout_s:g} s", "look whether a disk hangs")
        yield msgspec.structs.replace(finding, name=check.name, seconds=round(time.monotonic() - started_s, 3))


def _run(check: Check, found: list[Finding]) -> None:
    try:
        found.append(check.run())
    except Exception as error:  # noqa: BLE001 - the boundary of one check; it is reported
        found.append(failure(f"could not be checked: {type(error).__name__}: {error}", "report this as a bug"))
