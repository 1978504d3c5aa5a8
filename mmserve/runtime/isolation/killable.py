"""The parent's side of a child process that answers one request after another, and may die of any of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from mmserve.runtime.isolation.frames import read_frame, write_frame


class ChildDied(Exception):
    """A request has ended the child. The message says how."""

    def __init__(self, exit_code: int) -> None:
        """``exit_code``: negative for a signal."""
        super().__init__(signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}")
        self.took_too_long = exit_code == -signal.SIGALRM
        """True if the kernel has ended the child at its deadline."""


class KillableChild:
    """A child process, started when it is needed and again after its death. Thread-safe: one request at a time."""

    def __init__(
        self,
        module: str,
        setup: bytes,
        *,
        deadline_s: float,
        environment: Mapping[str, str] | None = None,
        silent: bool = False,
    ) -> None:
        """``module``: what the child runs; it calls ``serving.serve``, which gets ``setup`` and the deadline of a
        request. ``environment``: variables besides this process's. ``silent``: what it prints on stderr is dropped."""
        self._module = module
        self._setup = setup
        self._deadline_s = deadline_s
        self._environment = environment or {}
        self._stderr = subprocess.DEVNULL if silent else None
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """None while there is no child."""
        return None if self._child is None else self._child.pid

    def ask(self, request: bytes | memoryview) -> bytes:
        """The child's answer. Raises ChildDied if it ends instead, RuntimeError or OSError if it cannot be started."""
        with self._lock:
            child = self._child or self._start()
            try:
                return _exchange(child, request)
            except (BrokenPipeError, EOFError):
                self._end(child)
                raise ChildDied(child.returncode) from None

    def end_idle(self) -> None:
        """End the child unless it works now. Harmless without a child."""
        if self._child is not None and self._lock.acquire(blocking=False):
            try:
                if self._child is not None:
                    self._end(self._child)
            finally:
                self._lock.release()

    def close(self) -> None:
        """Kill the child, also while it works: that request raises ChildDied."""
        if (child := self._child) is not None:
            child.kill()
        with self._lock:
            if self._child is not None:
                self._end(self._child)

    def _start(self) -> subprocess.Popen[bytes]:
        # As in the parent, the working directory is on the import path only if it was meant to be.
        safe = ["-P"] if sys.flags.safe_path else []
        child = subprocess.Popen(
            [sys.executable, *safe, "-m", self._module, str(self._deadline_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **self._environment},
        )
        self._child = child
        try:
            _exchange(child, self._setup)
        except (BrokenPipeError, EOFError):
            self._end(child)
            raise RuntimeError(f"{self._module} did not start (exit code {child.returncode})") from None
        return child

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        self._child = None
        requests, answers = _pipes(child)
        with suppress(BrokenPipeError):
            requests.close()
        answers.close()
        child.wait()


def _exchange(child: subprocess.Popen[bytes], request: bytes | memoryview) -> bytes:
    """Raises BrokenPipeError or EOFError if the child has ended."""
    requests, answers = _pipes(child)
    write_frame(requests, request)
    return read_frame(answers)


def _pipes(child: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert child.stdin is not None
    assert child.stdout is not None
    return child.stdin, child.stdout
