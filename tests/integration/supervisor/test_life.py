"""Start and stop of a real supervisor over fake servers: no process, socket directory or memory is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from tests.fakes.processes.supervision import all_gone, supervised


def test_the_ready_line_names_the_model_settings_and_address() -> None:
    with supervised("--tp", "2") as server:
        line = server.until_ready()
        assert "http://127.0.0.1:" in line
        for fact in ("device cpu", "dtype", "KV cache", "tokens", "arena", "/health", "started in"):
            assert fact in line
        assert "2 x model_backend" in server.output
        assert server.phase(ready=True).phase == "ready"


def test_the_ready_line_waits_until_all_http_workers_know_that_the_server_is_ready() -> None:
    """A request that comes after the line must not be refused because the server is loading."""
    with supervised("--http-workers", "2", orders={"httpserver-1": "deaf"}) as server:
        fifo = server.scratch / "go-httpserver-1"
        os.mkfifo(fifo)
        server.phase(worker=0, ready=True)
        opener = threading.Timer(0.5, fifo.write_bytes, [b""])
        opener.start()
        server.until_ready()
        assert (server.scratch / "accepts-httpserver-1").exists()
        opener.join()


def test_the_log_has_start_and_ready_times_of_every_process() -> None:
    with supervised("--tp", "2") as server:
        server.until_ready()
    rows = re.findall(r"^  (\w.*?) +([\d.]+) to +([\d.]+)$", server.output, re.MULTILINE)
    spans = {title: (float(started), float(ready)) for title, started, ready in rows}
    assert next(iter(spans)) == "supervisor"
    assert set(spans) == {
        "supervisor",
        "fork_server",
        "torch_fork_server",
        "cache_server",
        "model_backend rank 0",
        "model_backend rank 1",
        "router",
        "httpserver 0",
    }
    assert all(0 <= started <= ready for started, ready in spans.values())
    # HTTP workers are started when the cache server is ready.
    assert spans["httpserver 0"][0] >= spans["cache_server"][1]


def test_every_process_title_names_its_role() -> None:
    with supervised("--tp", "2") as server:
        server.until_ready()
        titles = {" ".join(process.cmdline()).strip() for process in server.family()[1:]}
    assert titles == {
        "mmserve: fork_server",
        "mmserve: torch_fork_server",
        "mmserve: cache_server",
        "mmserve: model_backend rank 0",
        "mmserve: model_backend rank 1",
        "mmserve: router",
        "mmserve: httpserver 0",
    }


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_then_stops_in_reverse_order_and_leaves_nothing(signum: signal.Signals) -> None:
    with supervised() as server:
        server.until_ready()
        family = server.family()
        assert server.run_dirs()
        if signum == signal.SIGINT:
            server.signal(signum)
        else:
            server.popen.send_signal(signum)
        server.until("stop httpserver-0")
        server.until("stop router-0")
        server.until("stop model_backend-0")
        server.until("stop cache_server-0")
        assert server.end() == 0
        assert all_gone(family)
        assert not server.run_dirs()


def test_http_workers_are_told_of_the_drain() -> None:
    with supervised(orders={"httpserver-0": "stay"}) as server:
        server.until_ready()
        server.popen.send_signal(signal.SIGTERM)
        assert not server.phase(phase="draining").ready


def test_a_second_signal_stops_at_once() -> None:
    with supervised(orders={"httpserver-0": "stay"}) as server:
        server.until_ready()
        family = server.family()
        server.signal(signal.SIGINT)
        server.phase(phase="draining")
        server.signal(signal.SIGINT)
        assert server.end() == 0
        assert all_gone(family)


def test_a_drain_does_not_wait_for_an_engine_that_died_with_the_signal() -> None:
    """As with SIGTERM to all processes: without an engine, the HTTP workers' requests cannot be finished."""
    with supervised("--shutdown-timeout", "300", orders={"httpserver-0": "stay"}) as server:
        server.until_ready()
        family = server.family()
        router = server.process("router")
        server.popen.send_signal(signal.SIGSTOP)
        router.kill()
        psutil.wait_procs([router], timeout=1)
        server.popen.send_signal(signal.SIGTERM)
        server.popen.send_signal(signal.SIGCONT)
        assert server.end() == 0
        assert all_gone(family)


FETCHES = """
import signal, sys
from mmserve.config.config import Config
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.run import serve

def find(config):
    try:
        signal.raise_signal(signal.SIGTERM)
    except Exception:  # as broad as the one around downloads; the signal's exception must not be caught by it
        raise StartupError("fetching it failed")

sys.exit(serve(Config(port=0), find=find))
"""


def test_a_signal_during_the_download_is_not_reported_as_a_failed_download() -> None:
    ended = subprocess.run([sys.executable, "-c", FETCHES], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGTERM, "")


def test_a_process_that_does_not_end_is_killed() -> None:
    with supervised(orders={"router-0": "stay"}) as server:
        server.until_ready()
        family = server.family()
        server.popen.send_signal(signal.SIGTERM)
        assert server.end() == 0
        assert all_gone(family)


def test_sigkill_of_the_supervisor_ends_all_processes() -> None:
    with supervised("--tp", "2") as server:
        server.until_ready()
        family = server.family()
        server.popen.kill()
        assert all_gone(family)
        assert not server.run_dirs()


def test_sigkill_while_loading_ends_a_process_that_hangs() -> None:
    with supervised(orders={"model_backend-0": "hang"}) as server:
        server.until("start model_backend-0")
        family = server.family()
        server.popen.kill()
        assert all_gone(family)
        assert not server.run_dirs()


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_loading_leaves_nothing(signum: signal.Signals, code: int) -> None:
    with supervised(orders={"model_backend-0": "hang"}) as server:
        server.until("start model_backend-0")
        family = server.family()
        server.signal(signum) if signum == signal.SIGINT else server.popen.send_signal(signum)
        assert server.end() == code
        assert all_gone(family)
        assert not server.run_dirs()
        assert "Traceback" not in server.output
        assert "draining" not in server.output


def test_sigkill_of_all_processes_frees_memory_and_the_next_start_removes_sockets() -> None:
    with tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as runtime, supervised(runtime=Path(runtime)) as server:
        server.until_ready()
        family, arenas = server.family(), _arenas(str(server.popen.pid))
        assert arenas
        server.signal(signal.SIGKILL)
        assert all_gone(family)
        assert not arenas & _arenas(), "no process has its arena open"
        (left,) = server.run_dirs() or [None]
        with supervised(runtime=Path(runtime)) as successor:
            successor.until_ready()
            assert len(successor.run_dirs()) == 1
            assert left not in successor.run_dirs()


def _arenas(pid: str = "[0-9]*") -> set[int]:
    """Inodes of the arenas that the process has open; of all processes by default."""
    found = set()
    for link in Path("/proc").glob(f"{pid}/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith("/memfd:mmserve-arena"):
                found.add(link.stat().st_ino)
    return found


def test_a_failed_start_names_the_first_cause_and_leaves_nothing() -> None:
    with supervised("--tp", "2", orders={"model_backend-1": "refuse the moon is full: wait a week"}) as server:
        assert server.end() == 1
        assert server.output.splitlines()[-1] == (
            "mmserve: error: model_backend rank 1 failed: the moon is full: wait a week"
        )
        assert "Traceback" not in server.output
        assert not server.run_dirs()
        assert not [process for process in psutil.process_iter() if process.ppid() == server.popen.pid]


def test_a_bug_at_start_is_reported_with_its_type() -> None:
    with supervised(orders={"router-0": "break something"}) as server:
        assert server.end() == 1
        assert server.output.splitlines()[-1] == "mmserve: error: router failed: RuntimeError: something"


def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        with supervised("--port", port) as server:
            assert server.end() == 1
            assert server.output.startswith(f"mmserve: error: --port {port}")
            assert len(server.output.splitlines()) == 1
            assert not server.run_dirs()


def test_two_servers_side_by_side_do_not_touch_each_other() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="rt", dir="/tmp") as runtime,
        supervised(runtime=Path(runtime)) as one,
        supervised(runtime=Path(runtime)) as other,
    ):
        one.until_ready()
        other.until_ready()
        assert len(one.run_dirs()) == 2
        one.popen.send_signal(signal.SIGTERM)
        assert one.end() == 0
        assert len(other.run_dirs()) == 1
        assert len(other.family()) == 7


def test_both_ports_listen_on_the_address_of_host() -> None:
    with socket.create_server(("127.0.0.2", 0)) as free:
        health_port = free.getsockname()[1]
    with supervised("--host", "127.0.0.2", "--health-port", str(health_port)) as server:
        line = server.until_ready()
        sockets = psutil.Process(server.popen.pid).net_connections(kind="tcp")
        listening = [entry.laddr for entry in sockets if entry.status == psutil.CONN_LISTEN]
        assert [address.ip for address in listening] == ["127.0.0.2", "127.0.0.2"]
        assert health_port in {address.port for address in listening}
        for address in listening:
            assert f"http://127.0.0.2:{address.port}" in line


@pytest.mark.parametrize(("level", "logs_info"), [("info", True), ("warning", False)])
def test_the_log_level_applies_to_supervisor_and_servers(level: str, logs_info: bool) -> None:
    with supervised("--log-level", level) as server:
        server.until_ready()
        server.popen.send_signal(signal.SIGTERM)
        server.end()
    for title in ("supervisor", "router", "httpserver 0"):
        assert bool(re.search(rf" INFO +\[{title}\]", server.output)) == logs_info


def test_every_process_logs_json_lines() -> None:
    with supervised("--log-format", "json", "--log-level", "debug") as server:
        server.until_ready()
        server.popen.send_signal(signal.SIGTERM)
        server.end()
    lines = [json.loads(line) for line in server.output.splitlines() if line.startswith("{")]
    assert {line["process"] for line in lines} >= {"supervisor", "router", "httpserver 0"}
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    assert not re.search(r"^\d\d:\d\d:\d\d", server.output, re.MULTILINE), "a line in the text format"
