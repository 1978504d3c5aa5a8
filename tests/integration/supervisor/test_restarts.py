"""A running supervisor restarts processes that die, in groups, and tells the HTTP workers."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from mmserve.supervisor.watching.restarts import LIMIT
from tests.fakes.processes.supervision import Supervised, all_gone, supervised


@pytest.mark.parametrize("victim", ["router", "model_backend rank 1"])
def test_router_and_ranks_restart_as_one_engine(victim: str) -> None:
    with supervised("--tp", "2") as server:
        server.until_ready()
        engine = [server.process(title) for title in ("router", "model_backend rank 0", "model_backend rank 1")]
        others = [server.process(title) for title in ("cache_server", "httpserver 0")]
        server.phase(ready=True)
        server.process(victim).kill()
        assert server.phase(ready=False).phase == "restarting"
        phase = server.phase(ready=True)
        assert (phase.engine_epoch, phase.visual_epochs, phase.cache_epoch) == (1, (), 0)
        assert all_gone(engine)
        assert all(process.is_running() for process in others)
        restarted = [server.process(title) for title in ("router", "model_backend rank 0", "model_backend rank 1")]
        assert len(restarted) == 3


def test_the_cache_server_restarts_alone_and_its_epoch_rises() -> None:
    with supervised() as server:
        server.until_ready()
        rest = [process for process in server.family() if process.pid != server.process("cache_server").pid]
        server.phase(ready=True)
        server.process("cache_server").kill()
        phase = server.phase(cache_epoch=1)
        assert phase.ready
        assert phase.engine_epoch == 0
        assert all(process.is_running() for process in rest)


def test_a_restarted_http_worker_is_told_the_phase() -> None:
    with supervised("--http-workers", "2") as server:
        server.until_ready()
        server.process("httpserver 1").kill()
        server.until("ready httpserver-1 1")
        assert server.phase(worker=1, ready=True, detail="")


def test_a_process_that_dies_repeatedly_stops_the_server_with_the_reason() -> None:
    with supervised() as server:
        server.until_ready()
        family = server.family()
        (server.scratch / "order-cache_server-0").write_text("die")
        server.process("cache_server").kill()
        assert server.end() == 1
        last = server.output.splitlines()[-1]
        assert last.startswith("mmserve: error: gave up on cache_server")
        assert "SIGKILL" in last
        assert all_gone(family)
        assert not server.run_dirs()
        assert not [process for process in psutil.process_iter() if process.ppid() == server.popen.pid]


def test_http_workers_are_told_of_an_engine_restarted_during_a_drain() -> None:
    """Live requests may wait for the engine: the workers send them again when its epoch rises."""
    with supervised("--shutdown-timeout", "300", orders={"httpserver-0": "stay"}) as server:
        server.until_ready()
        fifo = server.scratch / "go-router-0"
        os.mkfifo(fifo)
        (server.scratch / "order-router-0").write_text("wait")
        server.process("router").kill()
        server.until("start router-0 1")
        server.popen.send_signal(signal.SIGTERM)
        server.phase(phase="draining", engine_epoch=0)
        fifo.write_bytes(b"")
        phase = server.phase(engine_epoch=1)
        assert (phase.phase, phase.ready) == ("draining", False)
        server.popen.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_sighup_replaces_http_workers_one_after_another() -> None:
    """The successor serves before its predecessor leaves; it uses the free index."""
    with supervised("--http-workers", "2") as server:
        server.until_ready()
        before = [server.process(f"httpserver {index}") for index in range(2)]
        os.kill(server.popen.pid, signal.SIGHUP)
        events = [server.until(event) for event in ("start httpserver-2", "ready httpserver-2")]
        events += [server.until(event) for event in ("start httpserver-0", "ready httpserver-0")]
        assert len(events) == 4
        assert all_gone(before)
        server.phase(worker=0, phase="ready")
        titles = sorted(" ".join(process.cmdline()).strip() for process in server.family())
        assert [title for title in titles if "httpserver" in title] == [
            "mmserve: httpserver 0",
            "mmserve: httpserver 2",
        ]
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert "gave up" not in server.output


def test_a_successor_that_does_not_start_leaves_the_workers_as_they_are() -> None:
    with supervised("--http-workers", "1", orders={"httpserver-1": "refuse no luck"}) as server:
        server.until_ready()
        worker = server.process("httpserver 0")
        os.kill(server.popen.pid, signal.SIGHUP)
        server.until("start httpserver-1")
        server.phase(phase="ready", detail="")
        assert worker.is_running()
        server.signal(signal.SIGTERM)
        assert server.end() == 0
        assert "the successor of another worker, failed: no luck" in server.output


@pytest.mark.parametrize(("name", "forked"), [("fork_server", "router"), ("torch_fork_server", "model_backend rank 0")])
def test_a_fork_server_that_dies_harms_none_of_those_it_has_forked(name: str, forked: str) -> None:
    with supervised() as server:
        server.until_ready()
        fork_server, one = server.process(name), server.process(forked)
        rest = [process for process in server.family() if process.pid != fork_server.pid]
        server.phase(ready=True)
        fork_server.kill()
        assert server.successor(name, fork_server.pid)
        assert all(process.is_running() for process in rest)
        assert server.process(forked).pid == one.pid, "it is now the supervisor's own child"
        one.kill()
        assert server.phase(ready=True, engine_epoch=1)
        server.process(forked).kill()  # which the new one has forked
        assert server.phase(ready=True, engine_epoch=2)
        server.popen.send_signal(signal.SIGTERM)
        assert server.end() == 0
    assert server.output.count(f"{forked} was killed by SIGKILL") == 2


def test_a_fork_server_that_dies_again_and_again_is_done_without() -> None:
    with supervised() as server:
        server.until_ready()
        server.phase(ready=True)
        pid = server.process("fork_server").pid
        for _ in range(LIMIT):
            os.kill(pid, signal.SIGKILL)
            pid = server.successor("fork_server", pid).pid
        os.kill(pid, signal.SIGKILL)
        server.process("router").kill()
        assert server.phase(ready=True, engine_epoch=1)
        server.popen.send_signal(signal.SIGTERM)
        assert server.end() == 0
    assert "the server goes on without it" in server.output


def _kill_together(server: Supervised, *titles: str) -> dict[str, psutil.Process]:
    """Kill the processes so that the supervisor sees all of them end at once."""
    victims = {title: server.process(title) for title in titles}
    server.popen.send_signal(signal.SIGSTOP)
    for victim in victims.values():
        victim.kill()
    server.popen.send_signal(signal.SIGCONT)
    return victims


def test_processes_start_without_a_fork_server_when_it_dies_with_them() -> None:
    with supervised() as server:
        server.until_ready()
        server.phase(ready=True)
        _kill_together(server, "fork_server", "router")
        assert server.phase(ready=True, engine_epoch=1)


def test_both_fork_servers_die_together() -> None:
    """The one with torch, which the other one has forked, starts again without it."""
    with supervised() as server:
        server.until_ready()
        server.phase(ready=True)
        for title, victim in _kill_together(server, "fork_server", "torch_fork_server").items():
            assert server.successor(title, victim.pid)
        server.process("router").kill()
        assert server.phase(ready=True, engine_epoch=1)
        server.popen.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_a_suspended_fork_server_is_killed_when_a_process_must_start() -> None:
    with supervised() as server:
        server.until_ready()
        server.phase(ready=True)
        fork_server = server.process("fork_server")
        fork_server.suspend()
        server.process("router").kill()
        assert server.phase(ready=True, engine_epoch=1)
        assert server.successor("fork_server", fork_server.pid)
