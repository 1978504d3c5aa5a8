"""Starts a server that belongs to this program and ends with it, however the program ends."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from mmserve.runtime.errors import StartupError

_KEPT_LINES = 50
"""Of the server's output, for the error if it does not start."""
_STOP_TIMEOUT_S = 30.0
_READY = re.compile(r"mmserve is ready: (http://[^\s,]+)")


@dataclass(frozen=True)
class OwnServer:
    """``api_key``: made for this server; it answers nobody who does not send it."""

    url: str
    api_key: str


@contextlib.contextmanager
def own_server(
    model: str, arguments: Sequence[str] = (), *, on_line: Callable[[str], object] = lambda line: None
) -> Iterator[OwnServer]:
    """Serve ``model`` on a free port of 127.0.0.1, ready when yielded; stop the server afterwards.

    ``arguments``: further ones of ``mmserve serve``. ``on_line`` gets each line of its output, in another thread.
    Raises StartupError with the last lines of its output if it does not start.
    """
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    command = [sys.executable, "-m", "mmserve.cli.owned_serve", str(read_fd), "--model", model]
    api_key = secrets.token_urlsafe()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, write_fd)
        try:
            # In a session of its own: Ctrl-C in the terminal is for this program.
            process = subprocess.Popen(
                [*command, *arguments, "--host", "127.0.0.1", "--port", "0", "--health-port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                # A key on the command line would be seen by every user of the machine.
                env={**os.environ, "MMSERVE_API_KEY": api_key},
                pass_fds=(read_fd,),
                start_new_session=True,
            )
        finally:
            os.close(read_fd)
        stack.callback(_stop, process)
        assert process.stdout is not None
        yield OwnServer(_url_when_ready(process, process.stdout, on_line), api_key)


def _url_when_ready(process: subprocess.Popen[str], output: IO[str], on_line: Callable[[str], object]) -> str:
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    url = ""
    known = threading.Event()

    def read() -> None:
        nonlocal url
        with output:
            for line in output:
                lines.append(line)
                on_line(line.rstrip("\n"))
                if not url and (found := _READY.search(line)):
                    url = found[1]
                    known.set()
        known.set()

    threading.Thread(target=read, name="server output", daemon=True).start()
    known.wait()
    if not url:
        process.wait()
        raise StartupError("the server did not start:\n" + "".join(lines).rstrip())
    return url


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
