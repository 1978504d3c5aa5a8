"""The supervisor and its children go on without descriptors, and with a log that nobody can write or read."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mmserve.ipc.links.channel import Sender
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.reply import HttpInbound
from tests.fakes.processes.supervision import Supervised, supervised

pytestmark = pytest.mark.faults


@contextmanager
def _no_more_descriptors(pid: int) -> Iterator[None]:
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    _, hard = before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (next(number for number in count() if number not in used), hard))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def test_without_descriptors_the_supervisor_kills_nobody_and_restarts_a_dead_process_later() -> None:
    with supervised("--stuck-timeout", "2") as server:
        server.until_ready()
        others = [server.process(title) for title in ("router", "httpserver 0")]
        with _no_more_descriptors(server.popen.pid):
            server.until_printed("heartbeat of httpserver 0 cannot be read")
            server.process("cache_server").kill()
            server.until_printed("cache_server cannot be started now")
        assert server.phase(cache_epoch=1).ready
        assert all(process.is_running() for process in others)
        assert server.process("cache_server").is_running()


def test_a_process_without_descriptors_that_is_connected_to_ends_and_is_started_again() -> None:
    """libzmq aborts a process that cannot accept a connection."""
    with supervised() as server:
        server.until_ready()
        server.phase(ready=True)  # the worker has opened all that it needs
        worker = server.process("httpserver 0")
        (name,) = server.run_dirs()
        endpoint = Endpoints(server.runtime / name).http(0)
        with _no_more_descriptors(worker.pid), ExitStack() as links:
            # The worker may close a descriptor after its limit was set. More connections than that use it up.
            for _ in range(8):
                links.enter_context(closing(Sender[HttpInbound](endpoint, HttpInbound)))
            server.until_printed("httpserver 0 was killed by SIGABRT (a library gave up")
        assert "Too many open files" in server.output, "the library's own line comes first"
        assert server.successor("httpserver 0", worker.pid).is_running()
        assert server.phase(ready=True).ready
        _serves_and_stops(server)


def _serves_and_stops(server: Supervised) -> None:
    server.phase(ready=True)
    server.process("router").kill()
    server.phase(ready=True, engine_epoch=1)
    server.signal(signal.SIGTERM)
    assert server.end() in (0, 128 + signal.SIGTERM)
    assert not server.run_dirs()


@pytest.fixture
def full_disk() -> Iterator[dict[str, Any]]:
    with open("/dev/full", "w") as full:
        yield {"stdout": full, "stderr": full}


@pytest.fixture
def closed_pipe() -> Iterator[dict[str, Any]]:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    yield {"stdout": write_fd, "stderr": write_fd}
    os.close(write_fd)


@pytest.fixture
def full_pipe() -> Iterator[dict[str, Any]]:
    """A pipe whose reader has stopped, like a pager's."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    try:
        while True:
            os.write(write_fd, bytes(4096))
    except BlockingIOError:
        os.set_blocking(write_fd, True)
    yield {"stdout": subprocess.DEVNULL, "stderr": write_fd}
    os.close(read_fd)
    os.close(write_fd)


@pytest.mark.parametrize("streams", ["full_disk", "closed_pipe", "full_pipe"])
def test_a_log_that_cannot_be_written_ends_and_delays_nothing(streams: str, request: pytest.FixtureRequest) -> None:
    with supervised("--log-level", "debug", **request.getfixturevalue(streams)) as server:
        _serves_and_stops(server)


def test_a_server_started_without_stdin_stdout_and_stderr_serves() -> None:
    with supervised(wrapper=["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]) as server:
        _serves_and_stops(server)
