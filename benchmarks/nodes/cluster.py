"""Nodes and fronts of one run. Fronts and clients are at the switch."""

from __future__ import annotations

import contextlib
import re
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.nodes.namespaces import Network
from benchmarks.nodes.node import PORT, REPORTS_PORT, Node, node
from mmserve.client.server_process import ServerProcess, server_process
from mmserve.ipc.links import cluster_key

_READY = re.compile(r"ready: (http://[^\s,]+)")
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 60.0, 30.0
_METRICS_TIMEOUT_S = 2.0


class Cluster:
    """Nodes by their numbers; one that has died can be started again."""

    def __init__(self, network: Network, directory: Path, options: Sequence[str]) -> None:
        self.network = network
        self.nodes: dict[int, Node] = {}
        self.key_file = directory / "key"
        cluster_key.make_if_missing(self.key_file)
        self._directory, self._options = directory, options
        self._live: dict[int, contextlib.ExitStack] = {}

    def start(self, *numbers: int) -> None:
        """All at once; ready when it returns."""
        for number in numbers:
            self._live[number] = contextlib.ExitStack()
        with ThreadPoolExecutor(len(numbers)) as threads:
            self.nodes.update(zip(numbers, threads.map(self._start, numbers), strict=True))

    def _start(self, number: int) -> Node:
        reports = f"tcp://{self.network.address(number)}:{REPORTS_PORT}"
        shared = ("--cluster-key-file", str(self.key_file), "--reports-endpoint", reports)
        made = node(self.network, number, self._directory, *shared, *self._options)
        return self._live[number].enter_context(made)

    def kill(self, number: int) -> None:
        """``kill -9`` of everything on the node."""
        self.nodes[number].kill()
        self._live.pop(number).close()

    def close(self) -> None:
        for live in self._live.values():
            live.close()

    @contextlib.contextmanager
    def front(self, rule: str = "seconds", port: int = 0) -> Iterator[ServerProcess]:
        """``rule``: seconds is the product's, random and two are those of ``rules``."""
        if rule == "seconds":
            command = ["mmserve", "front", "--port", str(port), "--cluster-key-file", str(self.key_file)]
            for number in self.nodes:
                address = self.network.address(number)
                command += ["--replica", f"http://{address}:{PORT},tcp://{address}:{REPORTS_PORT}"]
        else:
            urls = [each.url for each in self.nodes.values()]
            command = ["benchmarks.nodes.rules", rule, str(self.key_file), *urls]
        with server_process(
            [sys.executable, "-m", *command],
            _READY,
            on_line=lambda line: None,
            start_timeout_s=_START_TIMEOUT_S,
            stop_timeout_s=_STOP_TIMEOUT_S,
        ) as server:
            yield server


@contextlib.contextmanager
def cluster(network: Network, directory: Path, count: int, *options: str) -> Iterator[Cluster]:
    made = Cluster(network, directory, options)
    try:
        made.start(*range(count))
        yield made
    finally:
        made.close()


def metric(url: str, name: str, prefix: str = "mmserve") -> float:
    """Sum of a server's samples of this name, whatever their labels. Raises OSError."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=_METRICS_TIMEOUT_S) as reply:
        page = reply.read().decode()
    found = re.findall(rf"^{prefix}:{name}(?:\{{.*\}})? (\S+)", page, re.MULTILINE)
    return sum(map(float, found))
