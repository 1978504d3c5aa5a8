"""Starts a server as a child, waits until it says that it is ready, passes on its output, and stops it."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

from mmserve.runtime.errors import StartupError

_KEPT_LINES = 200
"""Of the server's output, for the error if it does not start."""


@dataclass(frozen=True)
class ServerProcess:
    """A server that is ready. ``pid``: root of its processes."""

    url: str
    pid: int


@contextlib.contextmanager
def server_process(
    command: Sequence[str],
    ready: re.Pattern[str],
    *,
    on_line: Callable[[str], object],
    start_timeout_s: float | None = None,
    stop_timeout_s: float,
    **streams: Any,
) -> Iterator[ServerProcess]:
    """``ready``: what its output says when it serves, with the URL as its first group. ``on_line`` gets each line, in
    another thread; all of them when the block has ended. ``streams``: further arguments of Popen.

    The server is stopped by SIGTERM, and killed ``stop_timeout_s`` later. Raises StartupError with the last lines of
    its output if it ends before it is ready, or is not ready after ``start_timeout_s``.
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **streams
    )
    assert process.stdout is not None
    output = _Output(process.stdout, ready, on_line)
    with contextlib.ExitStack() as stack:
        stack.callback(output.join, stop_timeout_s)
        stack.callback(_stop, process, stop_timeout_s)
        yield ServerProcess(output.url_when_ready(start_timeout_s), process.pid)


class _Output:
    """Reads the output of a server in a thread."""

    def __init__(self, stream: IO[str], ready: re.Pattern[str], on_line: Callable[[str], object]) -> None:
        self._stream = stream
        self._ready = ready
        self._on_line = on_line
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._url = ""
        self._known = threading.Event()
        self._thread = threading.Thread(target=self._read, name="server output", daemon=True)
        self._thread.start()

    def url_when_ready(self, timeout_s: float | None) -> str:
        """Waits for it. Raises StartupError."""
        in_time = self._known.wait(timeout_s)
        if not self._url:
            why = "did not start" if in_time else f"was not ready after {timeout_s:g} s"
            raise StartupError(f"the server {why}:\n" + "".join(self._lines).rstrip())
        return self._url

    def join(self, timeout_s: float) -> None:
        """Wait for the last line. A process that the server has left behind may keep the stream open."""
        self._thread.join(timeout_s)

    def _read(self) -> None:
        try:
            with self._stream:
                for line in self._stream:
                    self._lines.append(line)
                    self._on_line(line)
                    if not self._url and (found := self._ready.search(line)):
                        self._url = found[1]
                        self._known.set()
        finally:
            self._known.set()


def _stop(process: subprocess.Popen[str], timeout_s: float) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
