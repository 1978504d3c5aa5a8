"""The processes of a server on this machine, found from its port; what a drill does to them."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import psutil

from mmserve.cli.chaos.pages import ask_page
from mmserve.ipc.faults import InjectedFault, arm, disarm, is_armed
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.runtime.errors import StartupError

Kind = Literal["kill", "stop", "garbage", "error", "memory", "slow"]
INJECTED = ("error", "memory", "slow")
"""Kinds that need a server with --fault-injection (ipc/faults)."""
_NAMES = {"kill": "kill -9", "error": "error inside", "memory": "MemoryError", "slow": "slow inside"}
_END_TIMEOUT_S = 10.0
_MET_TIMEOUT_S = 10.0
_MET_LOOK_S = 0.02
_DEATH_S = 0.5
"""Until an error that ends a process has ended it."""
_TITLE = "mmserve: "
_GARBAGE_NBYTES = 1 << 16


@dataclass(frozen=True)
class Fault:
    """``title``: the process's title without the ``mmserve: ``. ``stopped_s``: for ``stop``, the time until SIGCONT."""

    title: str
    kind: Kind
    stopped_s: float = 0.0

    @property
    def name(self) -> str:
        """In words, for the report."""
        return f"SIGSTOP {self.stopped_s:g} s" if self.kind == "stop" else _NAMES.get(self.kind, self.kind)

    @property
    def breaks_connections(self) -> bool:
        """Whether clients of the process lose their connections: only those of HTTP workers."""
        return self.title.startswith("httpserver") and self.kind in ("kill", "stop")

    @property
    def process(self) -> str:
        """The process's name in the run directory, as ``Process.name``."""
        words = self.title.split()
        return f"{words[0]}-{words[-1] if words[-1].isdigit() else 0}"


class ServerProcesses:
    """The process tree below ``supervisor``."""

    def __init__(self, supervisor: psutil.Process) -> None:
        self._supervisor = supervisor

    @classmethod
    def of_url(cls, url: str) -> ServerProcesses:
        """The server that listens on the URL's port. Raises StartupError if it is not one of this machine and user."""
        port = urlsplit(url).port or 80
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                listens = any(
                    connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
                    for connection in process.net_connections("tcp")
                )
                if listens and any(_title(child) for child in process.children(recursive=True)):
                    return cls(process)
        raise StartupError(
            f"no mmserve of this user listens on port {port} of this machine: a drill sends signals, so it must run "
            "where the server runs, as its user"
        )

    def titles(self) -> tuple[str, ...]:
        """Titles of the live processes without ``mmserve: ``, sorted."""
        return tuple(sorted(title for child in self._supervisor.children(recursive=True) if (title := _title(child))))

    def pss_nbytes(self) -> int:
        """Proportional set size of the supervisor and all its processes."""
        return sum(self.pss_by_title().values())

    def pss_by_title(self) -> dict[str, int]:
        """Proportional set sizes in bytes. Processes without a title of their own count as ``supervisor``."""
        found: Counter[str] = Counter()
        for process in (self._supervisor, *self._supervisor.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                title = "supervisor" if process == self._supervisor else _title(process) or "supervisor"
                found[title] += process.memory_full_info().pss
        return dict(found)

    def cpu_seconds(self) -> float:
        """CPU time that the supervisor and all its processes have used."""
        total = 0.0
        for process in (self._supervisor, *self._supervisor.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])  # with those of children that have ended
        return total

    @property
    def alive(self) -> bool:
        return self._supervisor.is_running() and self._supervisor.status() != psutil.STATUS_ZOMBIE

    @property
    def takes_injections(self) -> bool:
        """True for a server with --fault-injection."""
        return any(self._endpoints().run_dir.glob("fault-*"))

    def inflict(self, fault: Fault) -> bool:
        """Blocks: a ``stop`` returns when the process runs again, or has been killed as stuck. False if the process had
        no work in which it could have met an injected fault."""
        process = self._named(fault.title)
        match fault.kind:
            case "kill":
                process.kill()
                # Its connections break while it ends, which takes a moment with much memory.
                with contextlib.suppress(psutil.Error):
                    process.wait(_END_TIMEOUT_S)
            case "stop":
                _stop(process, fault.stopped_s)
            case "garbage":
                for path in _listening_paths(process):
                    _send_garbage(path)
            case _:
                return self._inject(fault, fault.kind)
        return True

    def _inject(self, fault: Fault, kind: InjectedFault) -> bool:
        endpoints = self._endpoints()
        path = endpoints.fault(fault.process)
        arm(path, kind)
        ask_page(endpoints, fault.title)
        deadline_s = time.monotonic() + _MET_TIMEOUT_S
        while is_armed(path):
            if time.monotonic() > deadline_s:
                disarm(path)
                return False
            time.sleep(_MET_LOOK_S)  # no event tells another process of this
        time.sleep(_DEATH_S)
        return True

    def _endpoints(self) -> Endpoints:
        """Of the server's run directory, which is where its processes listen."""
        for child in self._supervisor.children(recursive=True):
            for path in _listening_paths(child):
                return Endpoints(Path(path).parent)
        raise StartupError("the server's processes listen nowhere")

    def _named(self, title: str) -> psutil.Process:
        for child in self._supervisor.children(recursive=True):
            if _title(child) == title:
                return child
        raise psutil.NoSuchProcess(0, title)


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        words = " ".join(process.cmdline()).strip()
        if words.startswith(_TITLE):
            return words.removeprefix(_TITLE)
    return ""


def _stop(process: psutil.Process, stopped_s: float) -> None:
    process.send_signal(signal.SIGSTOP)
    with contextlib.suppress(psutil.Error):  # TimeoutExpired, if it was not killed meanwhile
        process.wait(stopped_s)
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal.SIGCONT)


def _listening_paths(process: psutil.Process) -> Sequence[str]:
    """Unix sockets on which the process accepts connections."""
    connections = process.net_connections("unix")
    return sorted({str(connection.laddr) for connection in connections if str(connection.laddr).startswith("/")})


def _send_garbage(path: str) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(1.0)
        raw.connect(path)
        raw.sendall(secrets.token_bytes(_GARBAGE_NBYTES))
