"""One server on a node of its own: own address, processes and mounts, and a small disk for its files."""

from __future__ import annotations

import contextlib
import errno
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.nodes.namespaces import Network
from mmserve.client.server_process import server_process

PORT, REPORTS_PORT = 8000, 5560
_READY = re.compile(r"ready: (http://[^\s,]+)")
_DISK_MB = 64
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 120.0, 60.0


@dataclass(frozen=True)
class Node:
    """``pid``: of the process that holds the namespaces; all processes of the node end with it."""

    url: str
    pid: int
    disk: Path

    def kill(self) -> None:
        """As when the machine loses its power."""
        psutil.Process(self.pid).kill()

    def suspend(self) -> list[psutil.Process]:
        """All processes, which the caller resumes. The machine's kernel goes on answering for them."""
        processes = psutil.Process(self.pid).children(recursive=True)
        for each in processes:
            each.suspend()
        return processes

    def fill_disk(self) -> None:
        """Until nothing more can be written."""
        with contextlib.suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            self._filler.with_name("one-more").write_bytes(b"x" * 4096)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                return
        raise AssertionError("the disk is not full")

    def empty_disk(self) -> None:
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        (first,) = psutil.Process(self.pid).children()
        return Path(f"/proc/{first.pid}/root/{self.disk}/filler")


@contextlib.contextmanager
def node(network: Network, number: int, directory: Path, *arguments: str) -> Iterator[Node]:
    """A server of the packaged model. Its files are below ``directory``, on a disk that only the node sees."""
    disk = directory / f"node{number}"
    disk.mkdir(exist_ok=True)
    serve = [
        sys.executable, "-m", "mmserve", "serve", "--model", "llava", "--dtype", "float32",
        "--host", network.address(number), "--port", str(PORT), *arguments,
    ]  # fmt: skip
    mounted = f"mount -t tmpfs -o size={_DISK_MB}m tmpfs {disk}"
    script = f"{mounted} && export TMPDIR={disk} XDG_RUNTIME_DIR={disk} && exec {shlex.join(serve)}"
    own = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--ipc", "sh", "-c", script]
    with (directory / f"node{number}.log").open("a") as log:
        server = server_process(
            [*network.on(number), *own],
            _READY,
            on_line=log.write,
            start_timeout_s=_START_TIMEOUT_S,
            stop_timeout_s=_STOP_TIMEOUT_S,
        )
        with server as started:
            try:
                yield Node(started.url, started.pid, disk)
            finally:
                _stop(started.pid)


def _stop(pid: int) -> None:
    """SIGTERM to the supervisor; a signal to the process that holds the namespaces would kill it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children():
            child.terminate()
            child.wait(_STOP_TIMEOUT_S)
