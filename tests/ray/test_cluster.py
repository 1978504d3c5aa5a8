"""A Ray cluster that exists: ``serve deploy`` of the example, changes under load, two fronts, ``--ray-address``."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from mmserve.client.server_process import server_process
from mmserve.ipc.links import cluster_key
from tests.e2e.faults.streams import TEXT, answers_of
from tests.e2e.machines.steady_load import SteadyLoad
from tests.e2e.stack import LITTLE_MEMORY, Stack
from tests.fakes.http.ports import free_port
from tests.fakes.pictures.cache import until
from tests.ray.cluster import RayCluster, example, ray_cluster

pytest.importorskip("ray", reason="replicas on Ray need the extra of that name: make ray")

_READY = re.compile(r"mmserve is ready: (http://[^\s,]+), .* replicas")
_STREAMS = 12


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster() as started:
        yield started


def _answers(url: str) -> bool:
    try:
        return bool(urllib.request.urlopen(f"{url}/v1/models", timeout=5).status == 200)
    except OSError:
        return False


def test_the_example_is_deployed_updated_and_scaled_down_under_load_without_a_failed_request(
    cluster: RayCluster, tmp_path: Path
) -> None:
    cluster_key.make_if_missing(key := tmp_path / "key")
    port = free_port()
    stack = Stack(f"http://127.0.0.1:{port}", cluster.pid)
    started_s = time.monotonic()
    cluster.deploy(example(key, port, servers=2, fronts=2))
    until(lambda: _answers(stack.url) and len(cluster.servers()) == 2, timeout_s=180)
    print(f"deployed: {time.monotonic() - started_s:.1f} s")
    with SteadyLoad(stack) as load:
        before = {each.pid for each in cluster.servers()}
        load.go_on()
        started_s, rounds = time.monotonic(), load.rounds
        cluster.deploy(example(key, port, servers=2, fronts=2, options=("--max-num-seqs", "65")))
        until(lambda: len(now := {each.pid for each in cluster.servers()}) == 2 and not now & before, timeout_s=240)
        print(f"rolling update: {time.monotonic() - started_s:.1f} s, {load.rounds - rounds} rounds of streams")
        load.go_on()
        started_s, rounds = time.monotonic(), load.rounds
        cluster.deploy(example(key, port, servers=1, fronts=2, options=("--max-num-seqs", "65")))
        until(lambda: len(cluster.servers()) == 1, timeout_s=120)
        print(f"from two to one: {time.monotonic() - started_s:.1f} s, {load.rounds - rounds} rounds of streams")
        load.go_on()
        before = {each.pid for each in cluster.actors("front:Front")}
        changed = example(key, port, servers=1, fronts=2, options=("--max-num-seqs", "65"))
        changed["applications"][1]["args"]["max_connections"] = 1000
        started_s, rounds = time.monotonic(), load.rounds
        cluster.deploy(changed)
        until(
            lambda: len(now := {each.pid for each in cluster.actors("front:Front")}) == 2 and not now & before,
            timeout_s=240,
        )
        print(f"two new fronts: {time.monotonic() - started_s:.1f} s, {load.rounds - rounds} rounds of streams")
        load.go_on()
    assert not load.failures
    _a_front_dies(cluster, stack)
    cluster.delete_all()


def _a_front_dies(cluster: RayCluster, stack: Stack) -> None:
    """Two share the port. The death of one ends its own connections, and no others."""

    async def whole(session: aiohttp.ClientSession, begun: asyncio.Event, ports: list[int]) -> bool:
        body = {"model": "llava", "messages": TEXT, "stream": True, "max_tokens": 300, "ignore_eos": True}
        async with session.post(f"{stack.url}/v1/chat/completions", json=body) as answer:
            assert answer.connection is not None
            assert answer.connection.transport is not None
            port = answer.connection.transport.get_extra_info("sockname")[1]
            ports.append(port)
            data = await answer.content.readuntil(b"\n\n")
            begun.set()
            try:
                data += await answer.content.read()
            except aiohttp.ClientError:
                return False
            return data.endswith(b"data: [DONE]\n\n")

    async def test() -> None:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            events, ports = [asyncio.Event() for _ in range(_STREAMS)], [list[int]() for _ in range(_STREAMS)]
            streams = [asyncio.create_task(whole(session, *pair)) for pair in zip(events, ports, strict=True)]
            await asyncio.gather(*(event.wait() for event in events))
            victim, other = cluster.actors("front:Front")
            of_victim = {each.raddr.port for each in victim.net_connections() if each.raddr}
            victim.send_signal(signal.SIGKILL)
            ended = [await stream for stream in streams]
            expected = [port not in of_victim for (port,) in ports]
            assert ended == expected
            assert set(expected) == {True, False}, "both fronts had streams"
            assert other.is_running()

    asyncio.run(test())
    until(lambda: len(cluster.actors("front:Front")) == 2, timeout_s=60)
    assert asyncio.run(answers_of(stack))


def test_a_cluster_that_runs_is_used_and_left(cluster: RayCluster) -> None:
    command = [sys.executable, "-m", "mmserve", "serve", "--replicas", "1", "--ray-address", "auto", "--port", "0"]
    command += ["--dtype", "float32", *LITTLE_MEMORY]
    with server_process(
        command, _READY, on_line=print, start_timeout_s=150, stop_timeout_s=90, env=dict(cluster.environment)
    ) as server:
        assert asyncio.run(answers_of(Stack(server.url, server.pid)))
        assert len(cluster.servers()) == 1
    assert not cluster.servers()
    assert psutil.pid_exists(cluster.pid), "the cluster is not this command's"


def test_a_signal_while_servers_start_ends_the_command(cluster: RayCluster) -> None:
    command = [sys.executable, "-m", "mmserve", "serve", "--replicas", "1", "--ray-address", "auto", "--port", "0"]
    command += ["--dtype", "float32", *LITTLE_MEMORY]
    environment: dict[str, Any] = dict(cluster.environment)
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: bool(cluster.actors("nodes:Node")), timeout_s=90)
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.wait(90) == 0
    assert "ready" not in said
    until(lambda: not cluster.actors("nodes:Node") and not cluster.servers(), timeout_s=60)
