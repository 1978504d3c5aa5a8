"""The metrics server process."""

from __future__ import annotations

import os
from contextlib import closing

from mmserve.config.process import Process
from mmserve.ipc.channel import Receiver
from mmserve.messages.status import MetricBatch
from mmserve.metrics.memory import ProcessMemory
from mmserve.metrics.series import Series
from mmserve.metrics.server import answering, collect


def run(process: Process) -> None:
    """Serve until SIGTERM."""
    series = Series()
    series.registry.register(ProcessMemory(os.getppid()))
    inbox: Receiver[MetricBatch] = Receiver(process.endpoints.metrics, MetricBatch)
    with closing(inbox), answering(process.endpoints.metrics_http, series):
        process.ready({})
        collect(inbox, series)
