"""Two servers and a front before them, on this machine or in network namespaces."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.nodes.namespaces import Network
from mmserve.client.server_process import server_process
from tests.e2e.stack import Stack, running
from tests.fakes.http.ports import free_port

_READY = re.compile(r"ready: (http://[^\s,]+)")


@dataclass(frozen=True)
class Fronted:
    """``front`` answers as a server does."""

    front: Stack
    replicas: list[Stack]
    restart: Callable[[int], None]
    """End a replica with SIGTERM, wait for its end, and start another one in its place."""

    def busy(self) -> int:
        """The index of a replica that has requests now."""
        return next(index for index, each in enumerate(self.replicas) if each.metric("num_requests_in_flight"))

    def count(self, sample: str) -> float:
        """Of the front's metrics."""
        return front_metric(self.front, sample)


def front_metric(front: Stack, sample: str) -> float:
    """A sample by its name and labels; 0 if there is none yet."""
    page = urllib.request.urlopen(f"{front.url}/metrics", timeout=10).read().decode()
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"mmserve_front:{sample} "))


def kill(replica: Stack) -> None:
    """As when its machine stops: all processes at once."""
    for process in [psutil.Process(replica.pid), *psutil.Process(replica.pid).children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@contextlib.contextmanager
def fronted(directory: Path, network: Network | None = None) -> Iterator[Fronted]:
    """With a network, the servers are on its nodes, and the front and this thread at its switch."""
    key = directory / "key"
    with contextlib.ExitStack() as stack:
        if network is not None:
            stack.enter_context(network.from_switch())
        replicas: list[Stack] = []
        addresses: list[str] = []
        starts: list[Callable[[], AbstractContextManager[Stack]]] = []
        for number in range(2):
            host = "127.0.0.1" if network is None else network.address(number)
            reports = f"tcp://{host}:{free_port()}"
            options = ("--cluster-key-file", str(key), "--reports-endpoint", reports)
            listens = () if network is None else ("--host", host)
            wrapper = () if network is None else network.on(number)
            place = ("--port", str(free_port()), "--shutdown-timeout", "0")
            starts.append(functools.partial(running, *place, *options, *listens, wrapper=wrapper))
            replica = stack.enter_context(starts[-1]())
            replicas.append(replica)
            addresses += ["--replica", f"{replica.url},{reports}"]
        command = [sys.executable, "-m", "mmserve", "front", "--port", "0", "--cluster-key-file", str(key)]
        server = stack.enter_context(
            server_process([*command, *addresses], _READY, on_line=print, start_timeout_s=60, stop_timeout_s=30)
        )

        def restart(number: int) -> None:
            process = psutil.Process(replicas[number].pid)
            process.terminate()
            with contextlib.suppress(psutil.NoSuchProcess):
                process.wait(60)
            replicas[number] = stack.enter_context(starts[number]())

        yield Fronted(Stack(server.url, server.pid), replicas, restart)
