"""A small threaded HTTP server for status pages (GET and HEAD). A function maps a path to its page.

Clients cannot make it hold more than MAX_THREADS threads, nor keep others from an answer: at the limit, the connection
that has been open longest is closed unless its page is being made just now.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from mmserve.ipc.faults import NO_FAULTS, FaultPoint
from mmserve.runtime.shortage import OUT_OF_RESOURCES

MAX_THREADS = 16
_REQUEST_TIMEOUT_S = 10.0
_RETRY_S = 0.1
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Page:
    """An HTTP response."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


class StatusServer(ThreadingMixIn, UnixStreamServer):
    """Serves on a listening TCP or Unix socket, one thread a connection. Run ``serve_forever``."""

    daemon_threads = True

    def __init__(
        self,
        listener: socket.socket,
        page: Callable[[str], Page | None],
        *,
        max_threads: int = MAX_THREADS,
        faults: FaultPoint = NO_FAULTS,
    ) -> None:
        """``page(path)`` returns the response, or None for 404. It is called from many threads. An error in it is
        logged and answered with 500."""
        super().__init__("", _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._page = page
        self._faults = faults
        self._max_threads = max_threads
        self._is_short = False
        """True while connections cannot be accepted for want of descriptors or memory."""
        self._changed = threading.Condition()
        self._open: dict[socket.socket, bool] = {}
        """Connections that have a thread, oldest first; True for those that may be closed."""

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection. Waits a moment if it cannot: the kernel reports the connection again at once."""
        try:
            accepted = super().get_request()
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                if not self._is_short:
                    logger.error("status requests have to wait (%s)", error)
                self._is_short = True
                time.sleep(_RETRY_S)
            raise
        self._is_short = False
        return accepted

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start the connection's thread, once there is a place for it."""
        with self._changed:
            while len(self._open) >= self._max_threads:
                self._close_oldest()
                self._changed.wait()
            self._open[request] = True
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the machine has no thread left; the caller closes the connection
            self._forget(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """One connection's error: the client is gone. Called in its ``except`` block."""
        logger.warning("a status request failed", exc_info=True)

    def page(self, request: socket.socket, path: str) -> Page | None:
        """The page. Its connection is not closed while it is made."""
        self._mark(request, may_close=False)
        try:
            self._faults.pass_through()
            return self._page(path)
        except Exception:  # the boundary of one page
            logger.exception("a status page could not be made")
            return Page(b'{"error": "internal server error"}', 500)
        finally:
            self._mark(request, may_close=True)

    def _mark(self, request: socket.socket, *, may_close: bool) -> None:
        with self._changed:
            if request in self._open:
                self._open[request] = may_close
            self._changed.notify_all()

    def _close_oldest(self) -> None:
        """Shut a connection down: its thread then reads the end of the stream, and ends."""
        for request, may_close in self._open.items():
            if may_close:
                self._open[request] = False
                with suppress(OSError):  # the client may have closed it already
                    request.shutdown(socket.SHUT_RDWR)
                return

    def _forget(self, request: socket.socket) -> None:
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify_all()


@contextmanager
def serving_pages(path: Path, page: Callable[[str], Page | None], faults: FaultPoint = NO_FAULTS) -> Iterator[None]:
    """Answer on a new Unix socket, from threads, until the block ends."""
    path.unlink(missing_ok=True)  # a server that was killed leaves its socket behind
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        server = StatusServer(listener, page, faults=faults)
        threading.Thread(target=server.serve_forever, name="status-http", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    timeout = _REQUEST_TIMEOUT_S
    server: StatusServer

    def do_GET(self) -> None:
        self._send(self.server.page(self.request, self.path.split("?")[0]) or Page(b'{"error": "not found"}', 404))

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Says the status only: the message of http.server repeats the request, up to 64 KiB of it."""
        self.command = self.command or "GET"
        self._send(Page(b'{"error": "%s"}' % HTTPStatus(code).phrase.lower().encode(), code))

    def _send(self, page: Page) -> None:
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: probes come every second."""

    def address_string(self) -> str:
        return "client"
