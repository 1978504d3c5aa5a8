"""``mmserve serve --replicas`` on a Ray of its own: requests, a killed replica under streams, the end. ``make ray``."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from mmserve.client.server_process import server_process
from tests.e2e.faults.streams import answers_of
from tests.e2e.machines.fronts import front_metric
from tests.e2e.machines.steady_load import SteadyLoad
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes.pictures.cache import until

pytest.importorskip("ray", reason="replicas on Ray need the extra of that name: make ray")

_READY = re.compile(r"mmserve is ready: (http://[^\s,]+), .* replicas")


@contextlib.contextmanager
def _replicas(*options: str, on_line: Callable[[str], object] = print) -> Iterator[Stack]:
    command = [sys.executable, "-m", "mmserve", "serve", *options, "--port", "0", "--dtype", "float32"]
    with server_process(
        [*command, *LITTLE_MEMORY],
        _READY,
        on_line=on_line,
        start_timeout_s=150,
        stop_timeout_s=60,
        env={**os.environ, "RAY_DEDUP_LOGS": "0"},
    ) as server:
        yield Stack(server.url, server.pid)


_SERVER_READY = re.compile(r"nodes:Node pid=(?P<pid>\d+).* mmserve is ready: (?P<url>http://[^\s,]+)")
"""In Ray's log, which is this command's output: the actor, and its server."""


def _actors(stack: Stack) -> list[psutil.Process]:
    return [each for each in stack.processes("ray::") if "nodes:Node" in " ".join(each.cmdline())]


def test_streams_go_on_when_a_replica_is_killed_and_ray_places_another_one() -> None:
    def kill_one() -> None:
        victim, _ = _actors(stack)
        servers.extend(each for each in victim.children(recursive=True) if "mmserve" in " ".join(each.cmdline()))
        victim.send_signal(signal.SIGKILL)

    servers: list[psutil.Process] = []
    with _replicas("--replicas", "2") as stack:
        expected = asyncio.run(answers_of(stack))
        assert asyncio.run(answers_of(stack, kill_one)) == expected
        assert servers
        assert not psutil.wait_procs(servers, timeout=15)[1], "a server has outlived its actor"
        until(lambda: front_metric(stack, "replicas") == 2 and len(_actors(stack)) == 2, timeout_s=90)
        assert asyncio.run(answers_of(stack)) == expected
        processes = psutil.Process(stack.pid).children(recursive=True)
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not [each for each in alive if "mmserve" in " ".join(each.cmdline())]


def test_requests_go_elsewhere_while_a_replica_is_suspended() -> None:
    """First its actor alone, whose server goes on to report, then that as well. Both times all have their answers
    before it goes on, and before Ray notices, which takes 30 s."""
    with _replicas("--replicas", "2") as stack:
        expected = asyncio.run(answers_of(stack))
        victim, _ = _actors(stack)
        for processes in ([victim], [victim, *victim.children(recursive=True)]):
            assert asyncio.run(answers_of(stack)) == expected  # Ray relies on what it has heard in the last 10 s
            started_s = time.monotonic()
            with _stopped(processes):
                assert asyncio.run(asyncio.wait_for(answers_of(stack), 25)) == expected
            print(f"all answers beside a suspended replica: {time.monotonic() - started_s:.1f} s")
        assert front_metric(stack, "replicas") == 2


def test_streams_go_on_elsewhere_when_their_replica_is_suspended() -> None:
    """Its actor and its server. They move before it goes on, and before Ray notices, which takes 30 s."""

    def look(line: str) -> None:
        print(line, end="")
        if found := _SERVER_READY.search(line):
            servers[int(found["pid"])] = Stack(found["url"], 0)

    def suspend() -> None:
        busy = max(servers, key=lambda pid: servers[pid].metric("num_requests_in_flight"))
        victim = psutil.Process(busy)
        stopped.enter_context(_stopped([victim, *victim.children(recursive=True)]))
        begun_s.append(time.monotonic())

    servers: dict[int, Stack] = {}
    begun_s: list[float] = []
    with _replicas("--replicas", "2", on_line=look) as stack, contextlib.ExitStack() as stopped:
        expected = asyncio.run(answers_of(stack))
        assert len(servers) == 2
        assert asyncio.run(asyncio.wait_for(answers_of(stack, suspend), 60)) == expected
        print(f"all answers after a replica was suspended: {time.monotonic() - begun_s[0]:.1f} s")
        assert front_metric(stack, "resumed_total") >= 1
        stopped.close()
        assert asyncio.run(answers_of(stack)) == expected


@contextlib.contextmanager
def _stopped(processes: list[psutil.Process]) -> Iterator[None]:
    try:
        for each in processes:
            each.suspend()
        yield
    finally:
        for each in processes:
            each.resume()


def test_no_place_is_kept_for_a_request_that_went_elsewhere_and_a_replica_that_starts_is_known() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.ray.reservations"], capture_output=True, text=True, timeout=150
    )
    assert ended.returncode == 0, ended.stderr
    assert "placed elsewhere: 8" in ended.stdout
    assert "silent: 8" in ended.stdout
    assert "left: 0" in ended.stdout
    for line in ("others: False", "others after a kill: True", "others at last: False"):
        assert line in ended.stdout
    print(ended.stdout)


def test_servers_end_while_nobody_asks_and_come_back() -> None:
    with _replicas("--replicas", "1", "--min-replicas", "0") as stack:
        expected = asyncio.run(answers_of(stack))
        until(lambda: not _actors(stack), timeout_s=150)
        started_s = time.monotonic()
        assert asyncio.run(answers_of(stack)) == expected
        print(f"from none to all answers: {time.monotonic() - started_s:.1f} s")


def test_a_second_server_starts_under_load_and_takes_requests() -> None:
    def look(line: str) -> None:
        print(line, end="")
        if found := _SERVER_READY.search(line):
            servers.append(Stack(found["url"], 0))

    servers: list[Stack] = []
    few_slots = ("--max-num-seqs", "4")  # fewer than the load's streams
    with _replicas("--replicas", "2", "--min-replicas", "1", *few_slots, on_line=look) as stack:
        begun_s = time.monotonic()
        with SteadyLoad(stack) as load:
            assert len(servers) == 1
            until(lambda: servers[0].metric("num_requests_waiting") > 0, timeout_s=60)
            until(lambda: len(servers) == 2, timeout_s=120)
            print(f"from the load's start to a second server: {time.monotonic() - begun_s:.1f} s")
            until(lambda: servers[1].metric("request_success_total") > 0, timeout_s=60)
            print(f"from the load's start to its first answer: {time.monotonic() - begun_s:.1f} s")
            load.go_on()
        assert not load.failures


def test_a_signal_before_serve_has_started_ends_the_command() -> None:
    """Serve cannot be asked then to delete anything."""
    ended = subprocess.run([sys.executable, "-c", _SIGNAL_BEFORE_SERVE], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr


_SIGNAL_BEFORE_SERVE = """
import os, signal, sys
from mmserve.cluster.on_ray.environment import set_for_own_ray
set_for_own_ray()
from mmserve.cluster.on_ray import run
run.serve.start = lambda **options: os.kill(os.getpid(), signal.SIGTERM)
from mmserve.cli.main import main
sys.exit(main(["serve", "--replicas", "1", "--port", "0"]))
"""


def test_options_that_replicas_make_themselves_are_refused() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "mmserve", "serve", "--replicas", "2", "--reports-endpoint", "tcp://127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert "--replicas makes its own" in ended.stderr
