"""The metrics server process: answers ``/metrics`` over HTTP on a Unix socket, from the files of all processes, and
with ``--enable-admin`` also ``/state``.

The HTTP workers forward requests to this socket.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, closing
from pathlib import Path

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from mmserve.config.resolved.process import Process
from mmserve.ipc.faults import NO_FAULTS, FaultPoint
from mmserve.ipc.links.endpoints import num_http_endpoints
from mmserve.ipc.status_http import Page, serving_pages
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.monitoring.metrics.memory import ProcessMemory
from mmserve.monitoring.metrics.series import Series
from mmserve.monitoring.metrics.state_page import StatePage


def run(process: Process) -> None:
    """Serve until SIGTERM."""
    memory = ProcessMemory(process.supervisor_pid)
    series = Series(process.endpoints.metrics)
    series.registry.register(memory)
    config = process.deployment.config
    http_endpoints = num_http_endpoints(config.http_workers)
    state = StatePage(process.endpoints, memory, config.max_num_seqs, http_endpoints) if config.enable_admin else None
    with (
        closing(HeartbeatSender(process.endpoints, process.name)) as heartbeat,
        serving_metrics(process.endpoints.metrics_http, series, process.fault_point(), state),
    ):
        process.ready({})
        while True:
            heartbeat.beat(busy=False)
            if state is not None:
                state.sample()
            time.sleep(INTERVAL_S)  # threads do the work


def serving_metrics(
    socket_path: Path, series: Series, faults: FaultPoint = NO_FAULTS, state: StatePage | None = None
) -> AbstractContextManager[None]:
    """Answer ``/metrics`` on a new Unix socket, from threads, until the block ends, and the pages of ``state``."""

    def page(path: str) -> Page | None:
        if path in ("/", "/metrics"):
            return Page(series.render(), content_type=CONTENT_TYPE_PLAIN_0_0_4)
        return None if state is None else state.page(path)

    return serving_pages(socket_path, page, faults)
