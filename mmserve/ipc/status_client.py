"""Reads a status page of another process. Blocks, so never on an event loop."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

_LEAST_S = 0.01
"""For an answer that has come while others were waited for."""


def read_page(server: Path | str, path: str, timeout_s: float) -> bytes | None:
    """The body of the page, whatever its status is; None if there is no answer. ``server``: a Unix socket, or a URL."""
    return read_pages([server], path, timeout_s)[0]


def read_pages(servers: Sequence[Path | str], path: str, timeout_s: float) -> list[bytes | None]:
    """The same page of several servers. All are asked before the first answer is waited for, so that their times do not
    add up."""
    deadline_s = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        asked = [_asked(stack, server, path, timeout_s) for server in servers]
        return [_answer(connection, deadline_s) for connection in asked]


def _asked(
    stack: contextlib.ExitStack, server: Path | str, path: str, timeout_s: float
) -> http.client.HTTPConnection | None:
    try:
        connection = stack.enter_context(contextlib.closing(_connected(server, timeout_s)))
        connection.request("GET", path)
    except OSError:
        return None
    return connection


def _answer(connection: http.client.HTTPConnection | None, deadline_s: float) -> bytes | None:
    if connection is None:
        return None
    connection.sock.settimeout(max(_LEAST_S, deadline_s - time.monotonic()))
    try:
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
