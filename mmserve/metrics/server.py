"""Takes samples in and answers ``/metrics`` over HTTP on a Unix socket, side by side."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from mmserve.ipc.channel import Receiver
from mmserve.ipc.status_http import Page, StatusServer
from mmserve.messages.status import MetricBatch
from mmserve.metrics.series import Series


def collect(inbox: Receiver[MetricBatch], series: Series) -> None:
    """Apply batches for ever."""
    while True:
        series.apply(inbox.receive())


@contextlib.contextmanager
def answering(socket_path: Path, series: Series) -> Iterator[None]:
    """Serve ``/metrics`` from a thread."""
    # Left over by a metrics server that was killed.
    socket_path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        server = StatusServer(listener, lambda path: _page(path, series))
        threading.Thread(target=server.serve_forever, name="metrics-http", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def _page(path: str, series: Series) -> Page | None:
    if path not in ("/", "/metrics"):
        return None
    return Page(series.render(), content_type=CONTENT_TYPE_PLAIN_0_0_4)
