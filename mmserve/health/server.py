"""Takes heartbeats in and answers ``/live``, ``/ready`` and ``/health`` on a port of its own, from plain threads."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import msgspec

from mmserve.health.state import HealthState
from mmserve.ipc.channel import Receiver
from mmserve.ipc.status_http import Page, StatusServer
from mmserve.messages.status import HealthInbound


class HealthCollector:
    """HealthState between the thread that receives and the threads that answer."""

    def __init__(self) -> None:
        self._vitals = HealthState()
        self._lock = threading.Lock()

    def apply(self, message: HealthInbound) -> None:
        with self._lock:
            self._vitals.apply(message, time.monotonic())

    def page(self, path: str) -> Page | None:
        """200 or 503 with the whole report; None for an unknown path."""
        now_s = time.monotonic()
        with self._lock:
            match path:
                case "/live":
                    good = self._vitals.is_live(now_s)
                case "/ready" | "/health":
                    good = self._vitals.is_ready(now_s)
                case _:
                    return None
            report = self._vitals.report(now_s)
        return Page(msgspec.json.encode(report), 200 if good else 503)


def collect(inbox: Receiver[HealthInbound], ward: HealthCollector) -> None:
    """Apply messages for ever."""
    while True:
        ward.apply(inbox.receive())


@contextlib.contextmanager
def answering(listener: socket.socket, ward: HealthCollector) -> Iterator[None]:
    """Serve the probes from threads."""
    server = StatusServer(listener, ward.page)
    threading.Thread(target=server.serve_forever, name="health-http", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
