"""The metrics server process: answers ``/metrics`` over HTTP on a Unix socket, from the files of all processes.

The HTTP workers forward ``/metrics`` requests to this socket.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from mmserve.config.process import Process
from mmserve.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.ipc.faults import NO_FAULTS, FaultPoint
from mmserve.ipc.status_http import Page, StatusServer
from mmserve.metrics.memory import ProcessMemory
from mmserve.metrics.series import Series


def run(process: Process) -> None:
    """Serve until SIGTERM."""
    series = Series(process.endpoints.metrics)
    series.registry.register(ProcessMemory(os.getppid()))
    with (
        closing(HeartbeatSender(process.endpoints, process.name)) as heartbeat,
        serving_metrics(process.endpoints.metrics_http, series, process.fault_point()),
    ):
        process.ready({})
        while True:
            heartbeat.beat(busy=False)
            time.sleep(INTERVAL_S)  # threads do the work


@contextlib.contextmanager
def serving_metrics(socket_path: Path, series: Series, faults: FaultPoint = NO_FAULTS) -> Iterator[None]:
    """Answer ``/metrics`` on a new Unix socket, from threads, until the block ends."""
    # A metrics server that was killed leaves its socket behind.
    socket_path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        server = StatusServer(listener, lambda path: _page(path, series), faults=faults)
        threading.Thread(target=server.serve_forever, name="metrics-http", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def _page(path: str, series: Series) -> Page | None:
    if path not in ("/", "/metrics"):
        return None
    return Page(series.render(), content_type=CONTENT_TYPE_PLAIN_0_0_4)
