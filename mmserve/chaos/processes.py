"""The processes of a server on this machine, found from its port; what a drill does to them."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import psutil

from mmserve.runtime.errors import StartupError

Kind = Literal["kill", "stop", "garbage"]
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
        return f"SIGSTOP {self.stopped_s:g} s" if self.kind == "stop" else {"kill": "kill -9"}.get(self.kind, self.kind)

    @property
    def breaks_connections(self) -> bool:
        """Whether clients of the process lose their connections: only those of HTTP workers."""
        return self.title.startswith("httpserver") and self.kind != "garbage"


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
                if listens and any(_title(child) for child in process.children()):
                    return cls(process)
        raise StartupError(
            f"no mmserve of this user listens on port {port} of this machine: a drill sends signals, so it must run "
            "where the server runs, as its user"
        )

    def titles(self) -> tuple[str, ...]:
        """Titles of the live processes without ``mmserve: ``, sorted."""
        return tuple(sorted(title for child in self._supervisor.children() if (title := _title(child))))

    def pss_nbytes(self) -> int:
        """Proportional set size of the supervisor and all its processes."""
        total = 0
        for process in (self._supervisor, *self._supervisor.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    @property
    def alive(self) -> bool:
        return self._supervisor.is_running() and self._supervisor.status() != psutil.STATUS_ZOMBIE

    def inflict(self, fault: Fault) -> None:
        """Blocks: a ``stop`` returns when the process runs again, or has been killed as stuck."""
        process = self._named(fault.title)
        match fault.kind:
            case "kill":
                process.kill()
            case "stop":
                _stop(process, fault.stopped_s)
            case "garbage":
                for path in _listening_paths(process):
                    _send_garbage(path)

    def _named(self, title: str) -> psutil.Process:
        for child in self._supervisor.children():
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
