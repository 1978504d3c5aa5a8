"""Starts ``mmserve serve`` for a benchmark and stops it, also when SIGTERM ends the benchmark."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from mmserve.client.server_process import server_process

START_TIMEOUT_S = 120
STOP_TIMEOUT_S = 60
_READY = re.compile(r"ready: (http://[^\s,]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """A server under load. ``pid``: root of its process tree on this machine, when memory is to be measured."""

    name: str
    url: str
    model: str
    pid: int | None = None


@contextlib.contextmanager
def serve(
    *arguments: str,
    model: str = "llava",
    program: Sequence[str] = ("mmserve", "serve"),
    on_line: Callable[[str], object] = lambda line: None,
    wrapper: Sequence[str] = (),
) -> Iterator[Target]:
    """Start a server on a free port; ready when yielded. Raises StartupError with its output if it does not start.

    ``program``: a module of the same command line, and its first arguments. ``on_line`` gets each line of its output,
    in another thread; all of them when the block has ended. ``wrapper``: a command that executes the one after it."""
    command = [*wrapper, sys.executable, "-m", *program, "--model", model, "--port", "0", *arguments]
    with (
        exit_on_sigterm(),
        server_process(
            command, _READY, on_line=on_line, start_timeout_s=START_TIMEOUT_S, stop_timeout_s=STOP_TIMEOUT_S
        ) as server,
    ):
        yield Target("mmserve", server.url, model, server.pid)


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
