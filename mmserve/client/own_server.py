"""Starts a server that belongs to this program and ends with it, however the program ends."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mmserve.client.server_process import server_process

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
            server = stack.enter_context(
                server_process(
                    [*command, *arguments, "--host", "127.0.0.1", "--port", "0", "--health-port", "0"],
                    _READY,
                    on_line=lambda line: on_line(line.rstrip("\n")),
                    stop_timeout_s=_STOP_TIMEOUT_S,
                    stdin=subprocess.DEVNULL,
                    # A key on the command line would be seen by every user of the machine.
                    env={**os.environ, "MMSERVE_API_KEY": api_key},
                    pass_fds=(read_fd,),
                    # Ctrl-C in the terminal is for this program.
                    start_new_session=True,
                )
            )
        finally:
            os.close(read_fd)
        yield OwnServer(server.url, api_key)
