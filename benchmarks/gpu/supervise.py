"""Runs a step in child processes until all its checks have verdicts or its time is over. No torch.

Where a step has several processes, each first makes a part of the checks, and the verdicts of checks that pass are
kept. Then one more process makes the other checks alone: those that time something, those that failed beside others,
and those that no process had begun.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from benchmarks.gpu.checks import DEVICE_LOST, FAILED, PASSED, SKIPPED, TIMED_OUT, Part, Settings, read, write
from benchmarks.gpu.plan import Step

_GRACE_S = 5.0
"""For a child to end its own children after SIGTERM."""
_CHECK_SHARE = 0.6
"""Part of the time a step has left that one of its checks may take."""
_TOGETHER_SHARE = 0.6
"""Part of a step's time that several processes have together."""
_ROOT = Path(__file__).parents[2]


def run_step(step: Step, settings: Settings, folder: Path, seconds: float) -> dict[str, Any]:
    """{"checks": [...], "seconds": s, "reason": why the step has ended before its checks, or ""}.

    ``folder`` gets the step's file and log. ``seconds``: at most, the ends of children excluded.
    """
    path, log_path = folder / f"step-{step.number}.json", folder / f"step-{step.number}.log"
    started_s = time.monotonic()
    with log_path.open("a") as log:
        if step.processes > 1 and not settings.small:
            _together(step, settings, path, log, _TOGETHER_SHARE * seconds)
        reason = _until_done(step, settings, path, log, started_s + seconds)
    if reason.startswith("ended"):
        reason = f"{reason}: {_last_line(log_path)}"
    return {"checks": read(path)["checks"], "seconds": round(time.monotonic() - started_s, 2), "reason": reason}


def _until_done(step: Step, settings: Settings, path: Path, log: IO[str], end_s: float) -> str:
    """Returns why the step ended early, or ''."""
    while True:
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            return f"no end within {step.seconds:.0f} s"
        limit_s = max(1.0, _CHECK_SHARE * left_s)
        status = _run_child(step, settings, path, log, left_s, limit_s)
        if status == 0:
            return ""
        found = read(path)
        if status is None:
            _note(path, found, TIMED_OUT, "the step's time was over")
            return f"no end within {step.seconds:.0f} s"
        if found["running"] is None and status != DEVICE_LOST:
            return f"ended with {_said(status)}"
        _note(path, found, FAILED, f"no verdict within {limit_s:.0f} s, or {_said(status)}: see the log")


def _together(step: Step, settings: Settings, path: Path, log: IO[str], seconds: float) -> None:
    """The file gets what has passed or was skipped."""
    end_s, count = time.monotonic() + seconds, min(step.processes, len(os.sched_getaffinity(0)))
    own = [path.with_suffix(f".{index}.json") for index in range(count)]
    with contextlib.ExitStack() as stack:
        children = []
        for index, file in enumerate(own):
            command = _command(step, settings, file, seconds / 2, Part(index, count))
            children.append(stack.enter_context(_group(command, log, threads=_threads(count))))
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, end_s - time.monotonic()))
        for child in children:  # at once: each gets time to end its own children
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
    made = [check for file in own for check in read(file)["checks"] if check["verdict"] in (PASSED, SKIPPED)]
    made.sort(key=lambda check: check["verdict"] == SKIPPED)  # where one was made by several
    write(path, {"running": None, "checks": list({check["name"]: check for check in reversed(made)}.values())[::-1]})


def _threads(count: int) -> int:
    """Of each of so many processes."""
    return max(1, len(os.sched_getaffinity(0)) // count)


def _note(path: Path, found: dict[str, Any], verdict: str, reason: str) -> None:
    """A verdict for the check that was running, if one was."""
    if found["running"] is not None:
        found["checks"].append({"name": found["running"], "verdict": verdict, "reason": reason})
        write(path, {"running": None, "checks": found["checks"]})


def _run_child(step: Step, settings: Settings, path: Path, log: IO[str], seconds: float, limit_s: float) -> int | None:
    """The exit status; None if the time was over."""
    with _group(_command(step, settings, path, limit_s), log) as child:
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            return None


def _command(step: Step, settings: Settings, path: Path, limit_s: float, part: Part | None = None) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.gpu.child", step.module, str(path), f"{limit_s:.1f}"]
    return [*command, json.dumps(settings._asdict()), *map(str, part or ())]


@contextlib.contextmanager
def _group(command: list[str], log: IO[str], threads: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, of which none is left afterwards. ``threads``: that torch computes with."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    child = subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_GRACE_S)
        with contextlib.suppress(ProcessLookupError):  # also those that the child has left behind
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _said(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
