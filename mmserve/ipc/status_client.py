"""Reads a status page of another process. Blocks, so never on an event loop."""

from __future__ import annotations

import contextlib
import http.client
import socket
from pathlib import Path
from urllib.parse import urlsplit


def read_page(server: Path | str, path: str, timeout_s: float) -> bytes | None:
    """The body of the page, whatever its status is; None if there is no answer. ``server``: a Unix socket, or a URL."""
    try:
        with contextlib.closing(_connected(server, timeout_s)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return None


def _connected(server: Path | str, timeout_s: float) -> http.client.HTTPConnection:
    if isinstance(server, str):
        url = urlsplit(server)
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=timeout_s)
        connection.connect()
        return connection
    connection = http.client.HTTPConnection("localhost", timeout=timeout_s)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(timeout_s)
    try:
        connection.sock.connect(str(server))
    except OSError:
        connection.close()
        raise
    return connection
