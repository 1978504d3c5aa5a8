"""The health server process: answers probes over HTTP from threads, on a port of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import msgspec

from mmserve.config.resolved.process import Process
from mmserve.ipc.faults import NO_FAULTS, FaultPoint
from mmserve.ipc.links.channel import Receiver
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.status_http import Page, StatusServer
from mmserve.messages.status import HealthInbound
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender, read_beat
from mmserve.monitoring.health.load import read_load
from mmserve.monitoring.health.state import HealthState


def run(process: Process) -> None:
    """Serve until SIGTERM."""
    assert process.listen_fd is not None
    collector = HealthCollector(process.endpoints)
    inbox: Receiver[HealthInbound] = Receiver(process.endpoints.health, HealthInbound)
    with (
        closing(inbox),
        closing(HeartbeatSender(process.endpoints, process.name)) as heartbeat,
        socket.socket(fileno=process.listen_fd) as listener,
        serving_probes(listener, collector, process.fault_point()),
    ):
        process.ready({})
        while True:
            heartbeat.beat(busy=False)
            for message in inbox.drain(block=True, timeout_s=INTERVAL_S):
                collector.apply(message)


class HealthCollector:
    """A HealthState shared by the thread that receives messages and the threads that answer probes. Thread-safe."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._state = HealthState(lambda process: read_beat(endpoints.heartbeat(process)))
        self._lock = threading.Lock()
        self._metrics_http = endpoints.metrics_http

    def apply(self, message: HealthInbound) -> None:
        with self._lock:
            self._state.apply(message)

    def page(self, path: str) -> Page | None:
        """The full report with status 200 or 503; ``/status`` adds the load, and is always 200. None for an unknown
        path."""
        now_s = time.monotonic()
        if path == "/status":
            load = read_load(self._metrics_http)
            with self._lock:
                report = self._state.report(now_s)
            return Page(msgspec.json.encode({**report, "time_s": now_s, "load": load}))
        with self._lock:
            match path:
                case "/live":
                    good = self._state.is_live(now_s)
                case "/ready" | "/health":
                    good = self._state.is_ready(now_s)
                case _:
                    return None
            report = self._state.report(now_s)
        return Page(msgspec.json.encode(report), 200 if good else 503)


@contextlib.contextmanager
def serving_probes(
    listener: socket.socket, collector: HealthCollector, faults: FaultPoint = NO_FAULTS
) -> Iterator[None]:
    """Answer probes on the listening socket, from threads, until the block ends."""
    server = StatusServer(listener, collector.page, faults=faults)
    threading.Thread(target=server.serve_forever, name="health-http", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
