"""A replica: one whole server, as a child of the actor that Ray placed.

The server's processes have a supervisor of their own and end when the actor does, however it ends: the supervisor holds
the end of a pipe (``cli/owned_serve``). When the server ends, so does the actor, and Ray places another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from mmserve.client.server_process import ServerProcess, server_process
from mmserve.cluster.front.reports import ReportListener
from mmserve.cluster.on_ray.autoscaling import USED, WAIT_S
from mmserve.cluster.on_ray.held import Heard, Held
from mmserve.cluster.scale.cluster import Cluster
from mmserve.ipc.links.cluster_key import ClusterKey, written

_READY = re.compile(r"mmserve is ready: (http://[^\s,]+)")
_STOP_TIMEOUT_S = 60.0
_MAX_PLACES = 1024
_FIRST_PORT = 20_000
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DROPPED = ("OMP_NUM_THREADS", "MMSERVE_CONFIG")
"""Of the actor's environment. Ray sets one thread for each worker; the server counts its cores itself."""


class Node:
    """``options``: of ``mmserve serve``; ``environment``: variables for it, as its API key; ``secret``: of the cluster
    key, in hexadecimal; ``host``: the address to listen on, if not that of the machine."""

    def __init__(self, options: Sequence[str], secret: str, environment: Mapping[str, str], host: str = "") -> None:
        self._key = ClusterKey.of(bytes.fromhex(secret))
        self._cluster = Cluster()
        self._listener: ReportListener | None = None
        self._held = Held()
        with contextlib.ExitStack() as stack:
            key_file = stack.enter_context(_file_in_memory(written(self._key.secret)))
            host = host or _address()
            self._id = stack.enter_context(_place(host))
            self._reports = f"tcp://{host}:{_free_port(host)}"
            fixed = ("--host", host, "--port", "0", "--health-port", "0", "--reports-endpoint", self._reports)
            server = stack.enter_context(_server([*options, *fixed, "--cluster-key-file", key_file], environment))
            self._url = server.url
            self._stack = stack.pop_all()
        self._closing = threading.Event()
        threading.Thread(target=_end_with, args=(server.pid, self._closing), name="server", daemon=True).start()

    def record_replica_metadata(self) -> dict[str, str]:
        """What fronts need (``known``). Ray asks once."""
        return {"id": self._id, "url": self._url, "reports": self._reports}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """How loaded the server says that it is (``autoscaling``). Ray asks again and again."""
        self._listen()
        load = self._cluster.reported(self._id)
        return {USED: load.in_flight / load.slots, WAIT_S: load.wait_s + load.encoder_wait_s}

    async def hold(self, **request: Any) -> None:
        """Runs while a front has a request here, until that cancels it: so Ray counts the request. A front that died
        cancels nothing, and Ray may lose a cancellation: then it ends when the server says that it has no request."""
        self._listen()
        await self._held.until_over(time.monotonic())

    def _listen(self) -> None:
        """To the server's reports. In the event loop."""
        if self._listener is None:
            self._cluster.set_replicas([self._id])
            self._listener = ReportListener(Heard(self._cluster, self._held.idle), self._key)
            self._listener.set({self._id: self._reports})

    async def __del__(self) -> None:
        """Ray calls it when no request is left, before it ends the actor."""
        if self._listener is not None:
            await self._listener.aclose()
        self._closing.set()
        await asyncio.to_thread(self._stack.close)


def _address() -> str:
    """Of this machine, as Ray knows it."""
    id = ray.get_runtime_context().get_node_id()
    return str(next(each["NodeManagerAddress"] for each in ray.nodes() if each["NodeID"] == id))


@contextlib.contextmanager
def _file_in_memory(content: bytes) -> Any:
    """The name of a file that children of this process can read, and that is gone with it, however it ends."""
    fd = os.memfd_create("cluster-key")
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, content)
        yield f"/proc/{os.getpid()}/fd/{fd}"
    finally:
        os.close(fd)


@contextlib.contextmanager
def _place(address: str) -> Any:
    """Names this replica: by the machine's address, which no other one of the cluster has as it may have its name, and
    the smallest number that no other replica here has. So the name is the same one after a restart."""
    directory = Path(tempfile.gettempdir()) / f"mmserve-places-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    if (found := directory.lstat()).st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode):
        raise RuntimeError(f"{directory} is another user's: remove it")
    for number in range(_MAX_PLACES):
        with open(directory / str(number), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield f"{address}-{number}"
            return
    raise RuntimeError(f"this machine has {_MAX_PLACES} replicas already")


@contextlib.contextmanager
def _server(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    command = [sys.executable, "-m", "mmserve.cli.owned_serve", str(read_fd), *arguments]
    inherited = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, write_fd)
        try:
            server: ServerProcess = stack.enter_context(
                server_process(
                    command,
                    _READY,
                    on_line=lambda line: print(line, end="", flush=True),
                    stop_timeout_s=_STOP_TIMEOUT_S,
                    stdin=subprocess.DEVNULL,
                    env={**inherited, **environment},
                    pass_fds=(read_fd,),
                    start_new_session=True,
                )
            )
        finally:
            os.close(read_fd)
        yield server


def _end_with(pid: int, closing: threading.Event) -> None:
    """End this actor when the server has ended by itself: Ray sees that at once, a health check would take seconds."""
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if not closing.is_set():
        os.kill(os.getpid(), signal.SIGKILL)


def _free_port(host: str) -> int:
    """A TCP port of ``host`` that no process uses. OSError: ``host`` is no address of this machine, or has none.

    It is below the range from which the kernel gives ports to connections, if there is a free one: a port of that range
    could become a connection's before the router binds it.
    """
    below = range(_FIRST_PORT, int(_EPHEMERAL_PORTS.read_text().split()[0]))
    for port in random.sample(below, len(below)):
        try:
            return _bound(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    return _bound(host, 0)


def _bound(host: str, port: int) -> int:
    with socket.socket() as probe:
        probe.bind((host, port))
        return int(probe.getsockname()[1])
