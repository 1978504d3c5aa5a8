"""The parts of one HTTP worker: makes them, runs its background tasks, closes them.

The background tasks read the worker's inbox, send its heartbeat and sample the event loop's lag.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mmserve.checkpoint.vision.generic import GenericVision
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process
from mmserve.httpserver.batch_store.store import BatchStore
from mmserve.httpserver.engine.dispatcher import Dispatcher
from mmserve.httpserver.engine.links import EngineLinks
from mmserve.httpserver.engine.row_counts import RowCounts
from mmserve.httpserver.grammars import GrammarChecks
from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.httpserver.limits.idle_memory import return_memory_when_idle
from mmserve.httpserver.limits.reservations import Reservations
from mmserve.httpserver.limits.shortages import Shortages
from mmserve.httpserver.loop_lag import sample_loop_lag
from mmserve.httpserver.mm_cache.alloc_path import AllocPaths
from mmserve.httpserver.request.in_flight import RequestsInFlight
from mmserve.httpserver.request.path import RequestPath
from mmserve.httpserver.request.resources import RequestResources
from mmserve.httpserver.request.task import RequestTasks
from mmserve.httpserver.request.tenants import Tenants
from mmserve.httpserver.request.tracing.otlp_export import TraceExport
from mmserve.httpserver.request.tracing.trace import each_of, log_trace
from mmserve.httpserver.response_store.runs import BackgroundRuns
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.httpserver.served_model import ServedModel
from mmserve.httpserver.services import RequestServices
from mmserve.ipc.async_page import serving_page
from mmserve.ipc.faults import FaultPoint
from mmserve.ipc.links.channel import AsyncReceiver
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.reply import HttpInbound, ImageRows, SequenceStages, ServerPhase, TokenReply
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.retry_after import Clock
from mmserve.runtime.worker_threads import WorkerThreads

_INBOX_LIMIT = 10_000
"""Messages of the router that may wait in this process. The others wait in the router, at most the live answers."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerContext:
    """What the routes of a worker use."""

    deployment: Deployment
    endpoints: Endpoints
    model: ServedModel
    admission: AdmissionControl
    request_tasks: RequestTasks
    in_flight: RequestsInFlight
    path: RequestPath
    tenants: Tenants
    alloc_paths: AllocPaths
    metrics: MetricsClient
    body_memory: Reservations
    fetch_memory: Reservations
    shortages: Shortages
    responses: ResponseStore
    batches: BatchStore

    def admit_request(self) -> RequestResources:
        """Admit one request, before its body is read. The caller releases the resources.

        Raises Unavailable or Overloaded.
        """
        return RequestResources(self.admission, self.body_memory, self.fetch_memory)


@asynccontextmanager
async def open_worker(
    process: Process, services: RequestServices, metrics: MetricsClient, now: Clock = time.monotonic
) -> AsyncIterator[WorkerContext]:
    """A worker whose background tasks run until the context ends. Live requests should have ended before that."""
    deployment, endpoints = process.deployment, process.endpoints
    links = EngineLinks(endpoints)
    dispatcher = Dispatcher(process.index, links, metrics)
    prompt_threads = WorkerThreads("prompt", len(os.sched_getaffinity(0)))
    grammars = GrammarChecks.of_checkpoint(deployment.model.path)
    path = RequestPath(
        worker=process.index,
        max_model_len=deployment.max_model_len,
        max_fetched_nbytes=int(deployment.config.max_body_mb * MIB),
        grammars=grammars,
        alloc_paths=services.alloc_paths,
        prompts=services.prompts,
        prompt_threads=prompt_threads,
        dispatcher=dispatcher,
        vocabulary=services.vocabulary,
        answer_format=services.answer_format,
        eos_token_ids=deployment.model.eos_token_ids,
        metrics=metrics,
        row_counts=_row_counts(deployment, links, process.index),
    )
    body_memory, fetch_memory = _reservations(deployment, metrics, now)
    exports = [TraceExport(deployment, process.name, metrics)] if deployment.config.otlp_traces_endpoint else []
    responses = ResponseStore(
        endpoints.responses,
        int(deployment.config.responses_store_mb * MIB),
        deployment.config.responses_ttl,
        BackgroundRuns(endpoints, process.index),
    )
    batches = _batch_store(deployment.config)
    request_tasks = RequestTasks(
        path.generate,
        metrics,
        timeout_s=deployment.config.request_timeout or None,
        trace_sink=each_of([*([log_trace] if deployment.config.trace_requests else ()), *exports]),
    )
    context = WorkerContext(
        deployment=deployment,
        endpoints=endpoints,
        model=ServedModel.of(deployment),
        admission=AdmissionControl(deployment.config.max_queued_requests, metrics, now),
        request_tasks=request_tasks,
        in_flight=RequestsInFlight(process.index, request_tasks, dispatcher, links),
        path=path,
        tenants=Tenants(deployment.config, deployment.hash_seed),
        alloc_paths=services.alloc_paths,
        metrics=metrics,
        body_memory=body_memory,
        fetch_memory=fetch_memory,
        shortages=Shortages(metrics),
        responses=responses,
        batches=batches,
    )
    inbox: AsyncReceiver[HttpInbound] = AsyncReceiver(endpoints.http(process.index), HttpInbound, limit=_INBOX_LIMIT)
    try:
        async with _serving_requests(process, context.in_flight), asyncio.TaskGroup() as group:
            background = [
                group.create_task(_read_inbox(inbox, dispatcher, context, process.fault_point())),
                group.create_task(_send_heartbeats(process, (body_memory, fetch_memory), context.shortages)),
                group.create_task(_report_accepting(process, context.admission)),
                group.create_task(sample_loop_lag(metrics)),
                group.create_task(return_memory_when_idle(context.admission)),
            ]
            yield context
            for task in background:
                task.cancel()
    finally:
        for export in exports:
            await export.aclose()
        inbox.close()
        links.close()
        prompt_threads.close()
        grammars.close()
        await responses.aclose()
        await batches.aclose()


@asynccontextmanager
async def _serving_requests(process: Process, in_flight: RequestsInFlight) -> AsyncIterator[None]:
    """With --enable-admin, show the metrics server this worker's requests in flight."""

    async def page() -> bytes:
        return msgspec.json.encode(await in_flight.oldest())

    async with AsyncExitStack() as stack:
        if process.deployment.config.enable_admin:
            await stack.enter_async_context(serving_page(process.endpoints.requests_http(process.index), page))
        yield


def _batch_store(config: Config) -> BatchStore:
    directory = None if config.batch_dir is None else Path(config.batch_dir)
    return BatchStore(directory, int(config.batch_storage_mb * MIB), int(config.batch_file_mb * MIB))


def _row_counts(deployment: Deployment, links: EngineLinks, worker: int) -> RowCounts | None:
    vision = deployment.model.vision
    if not isinstance(vision, GenericVision) or vision.rows:
        return None
    return RowCounts(worker, vision, links, worker % deployment.config.visual_workers)


def _reservations(deployment: Deployment, metrics: MetricsClient, now: Clock) -> tuple[Reservations, Reservations]:
    """Memory for request bodies, and for images that requests fetch."""
    budgets, timeout_s = deployment.budgets, deployment.config.mm_queue_timeout
    return (
        Reservations(
            "body", "--body-budget-mb", budgets.body_nbytes, metrics, timeout_s, budgets.short_body_nbytes, now
        ),
        Reservations("fetch", "--fetch-budget-mb", budgets.fetch_nbytes, metrics, timeout_s, now=now),
    )


async def _read_inbox(
    inbox: AsyncReceiver[HttpInbound], dispatcher: Dispatcher, context: WorkerContext, faults: FaultPoint
) -> None:
    """Handle messages for ever. When one cannot be handled, this is logged, and nothing that it said is lost: the
    sequence of a reply is sent again, and a phase is handled once more."""
    async for message in inbox:
        try:
            faults.pass_through()
            _handle(message, dispatcher, context)
        except Exception:
            # Boundary of one message: the other requests of this worker must go on.
            # Its content is not logged: it is a client's answer.
            logger.exception("a message to this worker failed: %s", getattr(message, "id", type(message).__name__))
            if isinstance(message, TokenReply):
                dispatcher.lose(message)
            else:
                _handle(message, dispatcher, context)


def _handle(message: HttpInbound, dispatcher: Dispatcher, context: WorkerContext) -> None:
    match message:
        case TokenReply():
            dispatcher.deliver(message)
        case ServerPhase():
            context.admission.phase = message
            dispatcher.on_phase(message)
            if context.path.row_counts is not None:
                context.path.row_counts.on_phase(message)
        case SequenceStages():
            context.in_flight.deliver(message)
        case ImageRows():
            if context.path.row_counts is not None:
                context.path.row_counts.deliver(message)
        case _:
            context.responses.runs.handle(message)


async def _report_accepting(process: Process, admission: AdmissionControl) -> None:
    """The server's ready line waits for this, so that no request that comes after it is refused."""
    await admission.was_ready.wait()
    process.accepting()


async def _send_heartbeats(process: Process, budgets: Iterable[Reservations], shortages: Shortages) -> None:
    """Send heartbeats and metrics from the event loop that serves requests, so that a stuck loop is noticed; look at
    what the machine is short of.

    Never reported as busy: while a request waits for the engine, this process has nothing to do.
    """
    heartbeat = HeartbeatSender(process.endpoints, process.name)
    try:
        while True:
            heartbeat.beat(busy=False)
            for budget in budgets:
                budget.report()
            shortages.look()
            await asyncio.sleep(INTERVAL_S / 2)
    finally:
        heartbeat.close()
