"""A small threaded HTTP server for status pages (GET and HEAD). Knows no page: a function answers each path."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn, UnixStreamServer

_REQUEST_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Page:
    """One answer."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


class StatusServer(ThreadingMixIn, UnixStreamServer):
    """Answers on a listening stream socket, TCP or Unix, each connection in a thread; run ``serve_forever``."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, page: Callable[[str], Page | None]) -> None:
        """``page(path)``: the answer, or None for 404; called from many threads."""
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
        """Probes come every second; they are not worth a line."""

    def address_string(self) -> str:
        return "client"
