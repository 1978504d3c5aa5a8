"""A child that is a server: ready when it says so, stopped at the end, and quoted if it does not start."""

from __future__ import annotations

import re
import sys

import psutil
import pytest

from mmserve.client.server_process import server_process
from mmserve.runtime.errors import StartupError

READY = re.compile(r"ready: (\S+)")
SERVES = """
import signal, sys
print("begins", flush=True)
print("ready: http://here", flush=True)
print("serves", flush=True)
signal.sigwait([signal.SIGTERM])
print("ends", flush=True)
"""


def _command(program: str) -> list[str]:
    # Blocked from the first instruction on: SIGTERM may come at once.
    blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    return [sys.executable, "-c", blocked + program]


def test_a_server_is_ready_passes_on_its_output_and_is_stopped() -> None:
    lines: list[str] = []
    with server_process(_command(SERVES), READY, on_line=lines.append, stop_timeout_s=60) as server:
        assert server.url == "http://here"
        assert psutil.pid_exists(server.pid)
    assert lines == ["begins\n", "ready: http://here\n", "serves\n", "ends\n"]
    assert not psutil.pid_exists(server.pid)


def test_a_server_that_ends_first_is_quoted() -> None:
    program = "print('no such model'); raise SystemExit(1)"
    with (
        pytest.raises(StartupError, match="the server did not start:\nno such model"),
        server_process(_command(program), READY, on_line=lambda line: None, stop_timeout_s=60),
    ):
        pass


def test_a_server_that_is_never_ready_is_given_up_and_killed() -> None:
    seen: list[str] = []
    program = "import os, signal; print(os.getpid(), flush=True); signal.sigwait([signal.SIGUSR1])"
    with (
        pytest.raises(StartupError, match=r"was not ready after 0.01 s"),
        server_process(_command(program), READY, on_line=seen.append, start_timeout_s=0.01, stop_timeout_s=0.01),
    ):
        pass
    assert not any(psutil.pid_exists(int(line)) for line in seen)
