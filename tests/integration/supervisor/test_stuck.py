"""A running supervisor kills processes that are alive but stuck, and starts them again as if they had died."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from tests.fakes.processes.supervision import Supervised, all_gone, supervised

TIMEOUT = ("--stuck-timeout", "1.2")


def _log(server: Supervised) -> str:
    server.popen.send_signal(signal.SIGTERM)
    assert server.end() == 0
    return server.output


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["metrics", "health", "cache_server", "httpserver 0"])
def test_a_suspended_process_is_killed_and_started_again(victim: str) -> None:
    """The supervisor notices it without the health and the metrics server."""
    with supervised(*TIMEOUT, real_status=True) as server:
        server.until_ready()
        process = server.process(victim)
        others = {each.pid for each in server.family()} - {process.pid}
        process.suspend()
        assert all_gone([process])
        server.successor(victim, process.pid)
        assert others < {each.pid for each in server.family()}
        log = _log(server)
    assert f"{victim} is stuck: no heartbeat for" in log
    assert f"{victim} (process {process.pid}) is suspended (SIGSTOP) and cannot print its stacks" in log
    assert f"{victim} was stuck (no heartbeat for" in log


@pytest.mark.faults
@pytest.mark.parametrize("victim", ["router", "model_backend rank 1"])
def test_a_suspended_process_of_the_engine_takes_the_engine_with_it(victim: str) -> None:
    with supervised(*TIMEOUT, "--tp", "2") as server:
        server.until_ready()
        server.phase(ready=True)
        engine = [server.process(title) for title in ("router", "model_backend rank 0", "model_backend rank 1")]
        server.process(victim).suspend()
        assert server.phase(ready=False).phase == "restarting"
        assert server.phase(ready=True).engine_epoch == 1
        assert all_gone(engine)
        log = _log(server)
    assert log.count("is suspended (SIGSTOP)") == 1
    assert log.count("prints the stacks of its threads") == 2
    assert log.count("most recent call first") >= 2


@pytest.mark.faults
@pytest.mark.parametrize("how", ["silent", "busy"])
def test_a_process_that_hangs_prints_its_stacks_before_it_is_killed(how: str) -> None:
    with supervised(*TIMEOUT) as server:
        server.until_ready()
        (server.scratch / "busy-cache_server-0").write_text(how)
        process = server.process("cache_server")
        assert all_gone([process])
        (server.scratch / "busy-cache_server-0").unlink()
        assert server.phase(cache_epoch=1)
        log = _log(server)
    reason = "no heartbeat for" if how == "silent" else "busy without progress for"
    assert f"cache_server is stuck: {reason}" in log
    assert "most recent call first" in log
    assert "in _live" in log


@pytest.mark.faults
def test_a_process_that_is_starting_is_not_stuck() -> None:
    with supervised(*TIMEOUT) as server:
        server.until_ready()
        fifo = server.scratch / "go-cache_server-0"
        os.mkfifo(fifo)
        (server.scratch / "order-cache_server-0").write_text("wait")
        server.process("cache_server").kill()
        server.until("start cache_server-0 1")
        time.sleep(2 * float(TIMEOUT[1]))
        fifo.write_bytes(b"")
        assert server.until("ready cache_server-0") == "ready cache_server-0 1"
        assert "is stuck" not in _log(server)


@pytest.mark.faults
def test_a_hanging_start_ends_the_server_with_names_and_stacks() -> None:
    with supervised("--start-timeout", "2", orders={"cache_server-0": "hang"}) as server:
        assert server.end() != 0
        assert "reported nothing for 2 s (--start-timeout)" in server.output
        assert "cache_server" in server.output.partition(" did not start: ")[0].rpartition("mmserve: error: ")[2]
        assert "most recent call first" in server.output


@pytest.mark.faults
def test_a_pause_of_the_whole_server_kills_nothing() -> None:
    timeout_s = 5.0  # longer than above: on a machine with other work, the processes need some of it to beat again
    with supervised("--stuck-timeout", str(timeout_s)) as server:
        server.until_ready()
        before = {process.pid for process in server.family()}
        server.signal(signal.SIGSTOP)
        time.sleep(2 * timeout_s)
        # The supervisor runs first: it finds everyone silent.
        server.popen.send_signal(signal.SIGCONT)
        time.sleep(0.2 * timeout_s)
        server.signal(signal.SIGCONT)
        time.sleep(timeout_s)
        assert {process.pid for process in server.family()} == before
        assert "is stuck" not in _log(server)


@pytest.mark.faults
def test_without_a_timeout_nothing_is_killed() -> None:
    with supervised("--stuck-timeout", "0", real_status=True) as server:
        server.until_ready()
        process = server.process("metrics")
        process.suspend()
        time.sleep(1.5)
        assert process.status() == psutil.STATUS_STOPPED
        process.resume()
        assert "is stuck" not in _log(server)
