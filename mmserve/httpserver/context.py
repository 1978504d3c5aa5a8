"""One HTTP worker's parts, put together around its helpers.

Also reads the worker's inbox and keeps its heartbeat. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mmserve.config.deployment import Deployment
from mmserve.config.process import Process
from mmserve.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.httpserver.engine.dispatcher import Dispatcher
from mmserve.httpserver.engine.links import EngineLinks
from mmserve.httpserver.limits.admission import AdmissionControl
from mmserve.httpserver.limits.reservations import Reservations
from mmserve.httpserver.loop_lag import watch_lag
from mmserve.httpserver.mm_cache.alloc_path import AllocPaths
from mmserve.httpserver.request.path import RequestPath
from mmserve.httpserver.request.resources import RequestResources
from mmserve.httpserver.request.task import RequestTasks
from mmserve.httpserver.served_model import ServedModel
from mmserve.httpserver.services import RequestServices
from mmserve.ipc.channel import AsyncReceiver
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.reply import HttpInbound, ServerPhase, TokenReply
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.byte_budget import MIB


@dataclass(frozen=True)
class WorkerContext:
    """What routes need."""

    deployment: Deployment
    endpoints: Endpoints
    model: ServedModel
    gate: AdmissionControl
    flights: RequestTasks
    lanes: AllocPaths
    metrics: MetricsClient
    bodies: Reservations
    fetches: Reservations

    def hold(self) -> RequestResources:
        """For one request, at its beginning. Raises Unavailable or Overloaded."""
        return RequestResources(self.gate, self.bodies, self.fetches)


@asynccontextmanager
async def open_worker(
    process: Process, helpers: RequestServices, metrics: MetricsClient
) -> AsyncIterator[WorkerContext]:
    """A working front: inbox read, heart beating. On exit nothing of it is left; live requests should have ended."""
    deployment, endpoints = process.deployment, process.endpoints
    model = ServedModel.of(deployment)
    # A text model has no visual servers, and connecting to what is never there costs 30 wake-ups a second.
    roads = EngineLinks(endpoints, deployment.config.visual_workers if deployment.model.vision is not None else 0)
    dispatcher = Dispatcher(process.index, roads, metrics)
    gate = AdmissionControl(deployment.config.max_queued_requests, metrics)
    bodies, fetches = _reservations(deployment, metrics)
    path = RequestPath(
        worker=process.index,
        max_model_len=deployment.max_model_len,
        max_fetched_nbytes=int(deployment.config.max_body_mb * MIB),
        lanes=helpers.lanes,
        prompts=helpers.prompts,
        dispatcher=dispatcher,
        vocabulary=helpers.vocabulary,
        metrics=metrics,
    )
    flights = RequestTasks(path.generate, metrics)
    inbox: AsyncReceiver[HttpInbound] = AsyncReceiver(endpoints.http(process.index), HttpInbound)
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(_read_inbox(inbox, dispatcher, gate)),
                tasks.create_task(_beat(process, (bodies, fetches), metrics)),
                tasks.create_task(watch_lag(metrics)),
            ]
            yield WorkerContext(deployment, endpoints, model, gate, flights, helpers.lanes, metrics, bodies, fetches)
            for task in running:
                task.cancel()
    finally:
        inbox.close()
        roads.close()


async def _read_inbox(inbox: AsyncReceiver[HttpInbound], dispatcher: Dispatcher, gate: AdmissionControl) -> None:
    async for message in inbox:
        match message:
            case TokenReply():
                dispatcher.deliver(message)
            case ServerPhase():
                gate.phase = message
                dispatcher.follow(message)


def _reservations(deployment: Deployment, metrics: MetricsClient) -> tuple[Reservations, Reservations]:
    """Of bodies and of fetched images."""
    budgets, patience_s = deployment.budgets, deployment.config.mm_queue_timeout
    return (
        Reservations("body", "--body-budget-mb", budgets.body_nbytes, metrics, patience_s, budgets.short_body_nbytes),
        Reservations("fetch", "--fetch-budget-mb", budgets.fetch_nbytes, metrics, patience_s),
    )


async def _beat(process: Process, budgets: Iterable[Reservations], metrics: MetricsClient) -> None:
    """From the same loop that serves: a stuck loop stops beating. Waiting for the engine is not this process's work."""
    pulse = HeartbeatSender(process.endpoints, process.name)
    try:
        while True:
            pulse.beat(busy=False)
            for budget in budgets:
                budget.report()
            metrics.flush()
            await asyncio.sleep(INTERVAL_S / 2)
    finally:
        pulse.close()
