"""Asks the metrics and the health server for a page: their unit of work, for which nobody may ask in a drill."""

from __future__ import annotations

import contextlib
import socket
from urllib.parse import urlsplit

from mmserve.ipc.links.endpoints import Endpoints

_TIMEOUT_S = 5.0
_CHUNK_NBYTES = 1 << 16


def ask_page(endpoints: Endpoints, title: str) -> None:
    """Read a page of the process with this title, if it serves pages. Whatever it answers is right here."""
    with contextlib.suppress(OSError):
        if title == "metrics":
            with socket.socket(socket.AF_UNIX) as connected:
                connected.settimeout(_TIMEOUT_S)
                connected.connect(str(endpoints.metrics_http))
                _get(connected, "/metrics")
        elif title == "health":
            url = urlsplit(endpoints.health_url.read_text())
            with socket.create_connection((url.hostname, url.port), timeout=_TIMEOUT_S) as connected:
                _get(connected, "/live")


def _get(connected: socket.socket, path: str) -> None:
    connected.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
    while connected.recv(_CHUNK_NBYTES):
        pass
