"""Starts ``mmserve serve`` for a benchmark and stops it, also when SIGTERM ends the benchmark."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60


@dataclass(frozen=True)
class Target:
    """A server under load. ``pid``: root of its process tree on this machine, when memory is to be measured."""

    name: str
    url: str
    model: str
    pid: int | None = None


@contextlib.contextmanager
def serve(*arguments: str, model: str = "llava", program: Sequence[str] = ("mmserve", "serve")) -> Iterator[Target]:
    """Start a server on a free port; ready when yielded. Raises RuntimeError with its output if it does not start.

    ``program``: a module of the same command line, and its first arguments."""
    command = [sys.executable, "-m", *program, "--model", model, "--port", "0", *arguments]
    with (
        exit_on_sigterm(),
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process,
    ):
        watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
        watchdog.start()
        reader = threading.Thread(target=_discard, args=(process,), daemon=True)
        try:
            url = _ready_url(process)
            watchdog.cancel()
            reader.start()
            yield Target("mmserve", url, model, process.pid)
        finally:
            watchdog.cancel()
            _stop(process)
            if reader.ident:
                reader.join()


@contextlib.contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within the block, SIGTERM raises SystemExit, so that started servers are stopped as with Ctrl-C. For the main
    thread only."""
    before = signal.signal(signal.SIGTERM, _raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def parse_target(text: str) -> Target:
    """``name=URL[,model=M][,pid=P]``"""
    name, _, rest = text.partition("=")
    url, *options = rest.split(",")
    given = dict(option.split("=", 1) for option in options)
    pid = given.get("pid")
    return Target(name, url.rstrip("/"), given.get("model", "llava"), int(pid) if pid else None)


@contextlib.contextmanager
def targets_or_started(given: list[Target] | None, serve_args: str, model: str = "llava") -> Iterator[list[Target]]:
    """The given servers or, without any, one that is started with these flags."""
    if given:
        yield given
    else:
        with serve(*serve_args.split(), model=model) as target:
            yield [target]


def _raise_exit(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + signum)


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _ready_url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    printed = []
    for line in process.stdout:
        printed.append(line)
        if match := re.search(r"ready: (http://[^\s,]+)", line, re.IGNORECASE):
            return match.group(1)
    raise RuntimeError("the server did not start:\n" + "".join(printed))


def _discard(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    for _ in process.stdout:
        pass
