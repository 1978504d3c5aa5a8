"""The router process: messages in, plans to the ranks, replies out, one turn of the loop a step."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress

from mmserve.config.deployment import KV_BLOCK_TOKENS, Deployment
from mmserve.config.process import Process, Stop
from mmserve.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.ipc.channel import Receiver
from mmserve.messages.request import EngineInbound
from mmserve.messages.step import RankReady, StepPlan
from mmserve.metrics.client import MetricsClient
from mmserve.router.engine_client import EngineClient
from mmserve.router.output import OutputSender
from mmserve.router.scheduler.limits import Limits
from mmserve.router.scheduler.scheduler import Scheduler
from mmserve.router.stats import report_state


def run(process: Process) -> None:
    """Serve until Stop."""
    deployment, endpoints = process.deployment, process.endpoints
    with suppress(Stop), ExitStack() as stack:
        pulse = stack.enter_context(closing(HeartbeatSender(endpoints, process.name)))
        metrics = stack.enter_context(closing(MetricsClient(endpoints, process.name)))
        inbox: Receiver[EngineInbound] = stack.enter_context(closing(Receiver(endpoints.router, EngineInbound)))
        outbox = stack.enter_context(closing(OutputSender(endpoints, deployment.config.http_workers)))
        ranks = stack.enter_context(closing(EngineClient(endpoints, deployment.config.tp, pulse)))
        num_blocks = _num_blocks(deployment, ranks.wait_ready())
        scheduler = Scheduler(_limits(deployment), num_blocks, now=time.monotonic, record=metrics.add)
        process.ready({"kv_blocks": num_blocks, "kv_tokens": num_blocks * KV_BLOCK_TOKENS})
        depth = 2 if deployment.config.overlap_scheduling else 1
        serve(inbox, scheduler, ranks, outbox, metrics, pulse, depth)


def serve(
    inbox: Receiver[EngineInbound],
    scheduler: Scheduler,
    ranks: EngineClient,
    outbox: OutputSender,
    metrics: MetricsClient,
    pulse: HeartbeatSender,
    depth: int,
) -> None:
    """The loop, with at most ``depth`` plans in flight. While idle it sleeps, and wakes once a heartbeat.

    With two, the ranks have the next plan before they are done with the last. Then an abort comes while one plan is in
    flight, and its reply goes out after that one's result: no rank reads pictures of whoever was told of an end.
    """
    while True:
        for message in inbox.drain(block=scheduler.idle, timeout_s=INTERVAL_S):
            scheduler.receive(message)
        started_s = time.perf_counter()
        while ranks.num_in_flight < depth and (plan := scheduler.schedule()):
            ranks.send(plan)
        planned_s = time.perf_counter()
        if ranks.num_in_flight:
            plan, result = ranks.take()
            scheduler.apply(plan, result)
            _report_step(metrics, plan, planned_s - started_s, time.perf_counter() - started_s)
        outbox.send_all(scheduler.take_replies())
        report_state(scheduler, metrics)
        if scheduler.idle:
            metrics.flush()
        pulse.beat(busy=not scheduler.idle)


def _report_step(metrics: MetricsClient, plan: StepPlan, schedule_s: float, step_s: float) -> None:
    if plan.steps:
        metrics.add("iteration_tokens", sum(step.num_tokens for step in plan.steps))
        metrics.add("schedule_seconds", schedule_s)
        metrics.add("step_seconds", step_s)


def _limits(deployment: Deployment) -> Limits:
    config = deployment.config
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=deployment.max_model_len,
        max_step_s=config.max_step_ms / 1e3,
    )


def _num_blocks(deployment: Deployment, ready: RankReady) -> int:
    """What the ranks could allocate, within what the supervisor has decided."""
    return ready.num_blocks if deployment.kv_blocks is None else min(deployment.kv_blocks, ready.num_blocks)
