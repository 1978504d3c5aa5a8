"""A small threaded HTTP server for status pages (GET and HEAD). A function maps a path to its page."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer

_REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Page:
    """An HTTP response."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


class StatusServer(ThreadingMixIn, UnixStreamServer):
    """Serves on a listening TCP or Unix socket, one thread a connection. Run ``serve_forever``."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, page: Callable[[str], Page | None]) -> None:
        """``page(path)`` returns the response, or None for 404. It is called from many threads."""
        super().__init__("", _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.page = page


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    server: StatusServer

    def do_GET(self) -> None:
        page = self.server.page(self.path.split("?")[0]) or Page(b'{"error": "not found"}', 404)
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every second."""

    def address_string(self) -> str:
        return "client"
