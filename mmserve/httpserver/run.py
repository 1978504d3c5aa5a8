"""Entry point of one HTTP worker."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from mmserve.config.resolved.process import Process
from mmserve.httpserver.context import open_worker
from mmserve.httpserver.server import serve
from mmserve.httpserver.services import open_services
from mmserve.monitoring.metrics.client import MetricsClient

_SWITCH_INTERVAL_S = 0.0005
"""Python's default of 5 ms lets a thread that decodes or hashes delay the event loop by that much each time."""


def run(process: Process) -> None:
    """Serve until SIGTERM."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(process))


async def _serve(process: Process) -> None:
    metrics = MetricsClient(process.endpoints, process.name)
    try:
        async with (
            open_services(process, metrics) as services,
            open_worker(process, services, metrics) as context,
        ):
            await serve(process, context)
    finally:
        metrics.close()
