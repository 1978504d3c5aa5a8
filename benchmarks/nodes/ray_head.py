"""A Ray cluster whose nodes are namespaces. Its head is killed and comes back, with a store on disk: what do streams at
the servers of other nodes see of it?"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from benchmarks.load import report
from benchmarks.nodes.namespaces import Network, network
from benchmarks.nodes.recovery import Recovery, recovery, undisturbed
from benchmarks.nodes.streams import Clients
from benchmarks.nodes.workload import streams

_HEAD, SERVERS = 0, (1, 2)
_PORT, _RAY_PORT = 8100, 6379
_DIRECTORY = "/run/mmserve-ray"
"""Of each node's Ray, on a disk that only the node sees. Short: names of sockets are below it."""
OPTIONS = ("--model", "llava", "--dtype", "float32", "--kv-cache-gb", "0.2", "--mm-cache-gb", "0.05")
_CLIENTS, _BODIES, _TOKENS = 8, 23, 160
_STARTED = b"Ray runtime started"
_WARMING_S, _BEFORE_S, _AWAY_S, _AFTER_S, _START_S = 3.0, 15.0, 12.0, 10.0, 60.0


def why_not() -> str:
    """Empty if Ray is installed."""
    return "" if importlib.util.find_spec("ray") else "Ray is not installed: pip install 'mmserve[ray]'"


class RayNode:
    """One machine of Ray's cluster."""

    def __init__(self, machines: Network, number: int, directory: Path, environment: dict[str, str]) -> None:
        self._log = directory / f"ray{number}.log"
        head = f"{machines.address(_HEAD)}:{_RAY_PORT}"
        as_head = ["--head", f"--port={_RAY_PORT}", "--include-dashboard=false"]
        role = as_head if number == _HEAD else [f"--address={head}"]
        resources = {} if number == _HEAD else {"servers": 2}
        ray = [
            str(Path(sys.executable).with_name("ray")), "start", *role, f"--node-ip-address={machines.address(number)}",
            f"--temp-dir={_DIRECTORY}", "--num-cpus=2", f"--resources={json.dumps(resources)}",
            "--object-store-memory=80000000", "--disable-usage-stats", "--block",
        ]  # fmt: skip
        script = (
            f"hostname node{number} && mount -t tmpfs -o size=2g tmpfs /dev/shm && mkdir -p {_DIRECTORY} && "
            f"mount -t tmpfs -o size=1g tmpfs {_DIRECTORY} && exec {shlex.join(ray)}"
        )
        own = ["unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--kill-child", "--mount-proc", "sh", "-c"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*machines.on(number), *own, script], stdout=log, stderr=subprocess.STDOUT, env=environment
            )

    def until_started(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while _STARTED not in self._log.read_bytes():
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                raise TimeoutError(self._log.read_text())
            time.sleep(0.1)

    def run(self, environment: dict[str, str], *command: str) -> None:
        """A module, within the node."""
        (first,) = psutil.Process(self._process.pid).children()
        enter = ["nsenter", "-t", str(first.pid), "-m", "-p", "-n", "-u", "-i", "--"]
        subprocess.run([*enter, sys.executable, "-m", *command], check=True, env=environment)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._log.unlink()


@contextlib.contextmanager
def ray_nodes(machines: Network, directory: Path) -> Iterator[tuple[dict[int, RayNode], dict[str, str]]]:
    """A head without servers and two others, and the environment of their commands."""
    environment = {
        **os.environ,
        "RAY_worker_niceness": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_gcs_storage": "rocksdb",
        "RAY_gcs_storage_path": str(directory / "gcs"),
    }
    live: dict[int, RayNode] = {}
    try:
        for number in (_HEAD, *SERVERS):
            live[number] = RayNode(machines, number, directory, environment)
            live[number].until_started()
        yield live, environment
    finally:
        for each in live.values():
            each.kill()
        with contextlib.suppress(FileNotFoundError):
            Path(_DIRECTORY).rmdir()  # the mounts have gone with the nodes


def rows(directory: Path) -> list[report.Row]:
    """One."""
    bodies = streams(_BODIES, _TOKENS)
    with contextlib.ExitStack() as stack:
        machines = stack.enter_context(network(3))
        stack.enter_context(machines.from_switch())
        live, environment = stack.enter_context(ray_nodes(machines, directory))
        live[1].run(environment, "benchmarks.nodes.ray_deploy", str(_PORT), *OPTIONS)
        urls = [f"http://{machines.address(number)}:{_PORT}" for number in SERVERS]
        clients = Clients(urls, bodies, _CLIENTS)

        def event() -> None:
            live[_HEAD].kill()
            time.sleep(_AWAY_S)
            live[_HEAD] = RayNode(machines, _HEAD, directory, environment)
            live[_HEAD].until_started()

        threads = stack.enter_context(ThreadPoolExecutor(1))
        found = asyncio.run(_disturbed(clients, event, threads))
    for error in sorted(set(clients.failed)):
        print(f"  head: {error}")
    return [
        {
            "event": f"kill -9 of Ray's head, back after {_AWAY_S:g} s",
            "requests": clients.asked,
            "failed": len(clients.failed),
            "changed": len(clients.changed),
            "errors that clients retried": len(clients.retried),
            "longest pause s": f"{clients.pause_s:.1f}",
            "longest answer s": f"{clients.answer_s:.1f}",
            "rate back after s": f"{found.after_s:.1f}",
            "least rate": f"{found.least:.2f}",
        }
    ]


async def _disturbed(clients: Clients, event: Callable[[], None], threads: ThreadPoolExecutor) -> Recovery:
    load = asyncio.create_task(clients.run())
    try:
        await asyncio.sleep(_WARMING_S)
        before_s = time.perf_counter()
        await asyncio.sleep(_BEFORE_S)
        assert len(clients.expected) == len(clients.bodies), "the texts are not known yet"
        begun_s = time.perf_counter()
        await asyncio.get_running_loop().run_in_executor(threads, event)
        await asyncio.sleep(_AFTER_S)
        pieces_s = sorted(clients.pieces_s)
        return recovery(pieces_s, before_s, begun_s, time.perf_counter(), undisturbed(pieces_s, before_s, begun_s))
    finally:
        clients.stop()
        await load
