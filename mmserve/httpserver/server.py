"""Serves one worker's app on the socket that the process inherited; drains it on SIGTERM, retires it on RETIRE."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from contextlib import suppress

from mmserve.config.config import Config
from mmserve.config.resolved.process import RETIRE, Process
from mmserve.httpserver.api.openai.batches.runs import BatchRuns
from mmserve.httpserver.api.openai.errors import error_body
from mmserve.httpserver.api.openai.responses.events.fold import lost
from mmserve.httpserver.app import generate_endpoints, make_app
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.connections import ConnectionLimits, OpenConnections
from mmserve.httpserver.http.uvicorn_server import UvicornServer
from mmserve.runtime.errors import Unavailable


async def serve(process: Process, context: WorkerContext) -> None:
    """Serve until SIGTERM or RETIRE; return when live requests have ended or timed out."""
    assert process.listen_fd is not None, "an http worker inherits the listening socket"
    limits = ConnectionLimits.of(process.deployment.config)
    refusal = Unavailable(f"{limits.max_connections} connections are open already (--max-connections)")
    connections = OpenConnections(limits, context.metrics, error_body(refusal))
    endpoints = generate_endpoints(context)
    batches = BatchRuns(context.batches, endpoints, _batch_lines(process.deployment.config))
    server = UvicornServer(make_app(context, endpoints, batches), lambda: process.ready({}), connections)
    timeout_s = process.deployment.config.shutdown_timeout
    ends: dict[signal.Signals, asyncio.Task[None]] = {}
    deadline_s = 0.0
    await context.responses.end_lost(lost)
    await batches.start()

    def on_signal(signum: signal.Signals) -> None:
        if signum not in ends:
            nonlocal deadline_s
            batches.stop()
            deadline_s = time.monotonic() + timeout_s
            end = _drain(server, context, batches, timeout_s) if signum == signal.SIGTERM else server.retire(timeout_s)
            ends[signum] = asyncio.ensure_future(end)

    for signum in (signal.SIGTERM, RETIRE):
        asyncio.get_running_loop().add_signal_handler(signum, on_signal, signum)
    await server.serve(sockets=[socket.socket(fileno=process.listen_fd)])
    # A response in the background has no connection that would have been waited for.
    with suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, deadline_s - time.monotonic())):
            await context.responses.runs.idle()
    await _cancel_requests(context, batches)


def _batch_lines(config: Config) -> int:
    """Lines of a batch at once: enough to keep the engine busy, and half of the places at most."""
    return max(1, min(config.max_num_seqs + 8, config.max_queued_requests // 2))


async def _cancel_requests(context: WorkerContext, batches: BatchRuns) -> None:
    """End all requests that are left, and store how those in the background ended."""
    await batches.end()
    await context.request_tasks.close()
    await context.responses.runs.end()


async def _drain(server: UvicornServer, context: WorkerContext, batches: BatchRuns, timeout_s: float) -> None:
    """Refuse new requests with 503, let all admitted ones end, then close the socket and the connections.

    A request is admitted before its body is read, so bodies that are still arriving are waited for as well.
    """
    deadline_s = time.monotonic() + timeout_s
    context.admission.drain()
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await context.admission.idle()
    await _cancel_requests(context, batches)
    server.stop(deadline_s - time.monotonic())
