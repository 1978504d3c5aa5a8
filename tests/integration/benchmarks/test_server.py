"""A server that a benchmark has started is stopped when a signal ends the benchmark."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

TIMEOUT_S = 60
PROGRAM = """
import subprocess
from benchmarks.load.server import exit_on_sigterm

with exit_on_sigterm(), subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as server:
    try:
        print("started", flush=True)
        server.wait()
    finally:
        server.kill()
        print("stopped", flush=True)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_started_server_is_stopped_by_a_signal(signum: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "started\n"
        program.send_signal(signum)
        assert program.communicate(timeout=TIMEOUT_S)[0] == "stopped\n"
        assert program.returncode
