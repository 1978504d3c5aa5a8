"""A machine's raylet dies (``kill -9``) under streams: as when Ray's part of a machine is lost, but not the machine."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.nodes.cluster import metric
from tests.e2e.machines.fronts import front_metric
from tests.e2e.machines.steady_load import SteadyLoad
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes.http.ports import free_port
from tests.fakes.pictures.cache import until

pytest.importorskip("ray", reason="replicas on Ray need the extra of that name: make ray")

_SOON = {"initial_delay_ms": "1000", "period_ms": "500", "timeout_ms": "1000", "failure_threshold": "3"}
"""When Ray counts a machine as lost. Its own choice is 15 s."""

_COMMAND = (sys.executable, "-m", "tests.ray.two_raylets")
_OPTIONS = ("--model", "llava", "--dtype", "float32", *LITTLE_MEMORY, "--shutdown-timeout", "0")


@contextlib.contextmanager
def _two_raylets(port: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """What takes commands, and the second raylet's pid."""
    with tempfile.TemporaryDirectory(prefix="r-", ignore_cleanup_errors=True) as directory:
        environment = {
            **os.environ,
            **{f"RAY_health_check_{name}": value for name, value in _SOON.items()},
            "RAY_TMPDIR": directory,  # short: names of sockets are below it
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",
        }
        with subprocess.Popen(
            [*_COMMAND, str(port), *_OPTIONS], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            for line in process.stdout:
                print(line, end="")
                if line.startswith("ready"):
                    yield process, int(line.split()[1])
                    break
            process.stdin.close()
            print(process.stdout.read())
        assert process.returncode == 0


def test_streams_go_on_nothing_is_left_and_a_server_comes_back_with_room_for_it() -> None:
    def say(word: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()

    port = free_port()
    with _two_raylets(port) as (process, raylet):
        stack = Stack(f"http://127.0.0.1:{port}", process.pid)
        until(lambda: front_metric(stack, "replicas") == 2, timeout_s=60)
        with SteadyLoad(stack) as load:
            processes = psutil.Process(raylet).children(recursive=True)
            assert any("mmserve: supervisor" in " ".join(each.cmdline()) for each in processes)
            say("kill")
            assert not psutil.wait_procs(processes, timeout=30)[1], "a process has outlived its raylet"
            until(lambda: front_metric(stack, "replicas") == 1, timeout_s=60)
            load.go_on()
            assert metric(stack.url, "resumed_total", prefix="mmserve_front"), "no stream was at the lost server"
            started_s = time.monotonic()
            say("add")
            until(lambda: front_metric(stack, "replicas") == 2, timeout_s=120)
            print(f"from a machine more to a server on it, under load: {time.monotonic() - started_s:.1f} s")
            load.go_on()
        assert not load.failures
