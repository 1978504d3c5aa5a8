"""A server whose ranks are on two nodes, as two supervisors of this machine or in two network namespaces."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.nodes.namespaces import Network
from mmserve.ipc.links import cluster_key
from tests.e2e.stack import LITTLE_MEMORY, Stack, running
from tests.fakes.http.ports import free_port
from tests.fakes.pictures.cache import until


class Nodes:
    """Node 0 is ``stack``. Node 1 is started again by ``restart``, as a service manager would."""

    def __init__(self, directory: Path, network: Network | None, ranks: int) -> None:
        self.network, self._directory = network, directory
        key = directory / "cluster-key"
        cluster_key.make_if_missing(key)
        head = f"{'127.0.0.1' if network is None else network.address(0)}:{free_port()}"
        self._options = ("--tp", str(ranks), "--nnodes", "2", "--head", head, "--cluster-key-file", str(key))
        self._output = (directory / "node").open("w+")
        self._node = self._start()
        self.stack: Stack

    @contextlib.contextmanager
    def head(self) -> Iterator[None]:
        listens = () if self.network is None else ("--host", self.network.address(0), "--allowed-hosts", "*")
        wrapper = () if self.network is None else self.network.on(0)
        with running(*self._options, *listens, "--node-timeout", "2", wrapper=wrapper) as self.stack:
            yield

    def _start(self, *changes: str) -> subprocess.Popen[bytes]:
        wrapper = () if self.network is None else self.network.on(1)
        command = (
            sys.executable, "-m", "mmserve", "serve", "--model", "llava", "--dtype", "float32", *LITTLE_MEMORY,
            *self._options, "--node-rank", "1", "--node-timeout", "2", *changes,
        )  # fmt: skip
        return subprocess.Popen([*wrapper, *command], stdout=self._output, stderr=subprocess.STDOUT, env=os.environ)

    @property
    def node(self) -> psutil.Process:
        """Its supervisor."""
        return psutil.Process(self._node.pid)

    def rank(self) -> psutil.Process:
        """Of node 1, of two ranks in all."""
        titled = (child for child in self.node.children(recursive=True) if "rank 1" in " ".join(child.cmdline()))
        return next(titled)

    def restart(self) -> None:
        """Start node 1 again, whose supervisor was killed."""
        self._node.wait()
        self._node = self._start()

    def until_whole(self) -> None:
        """Wait until the server answers and node 1 has its three processes."""
        until(lambda: self.stack.answers and len(self.node.children(recursive=True)) == 3, timeout_s=60)

    def output(self) -> str:
        return (self._directory / "node").read_text()

    def close(self) -> None:
        self._node.terminate()
        self._node.wait()
        self._output.close()


@contextlib.contextmanager
def nodes(directory: Path, network: Network | None = None, *, ranks: int = 2) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        if network is not None:
            stack.enter_context(network.from_switch())
        made = Nodes(directory, network, ranks)
        stack.callback(made.close)
        try:
            stack.enter_context(made.head())
        except BaseException:
            print(made.output())
            raise
        yield made
