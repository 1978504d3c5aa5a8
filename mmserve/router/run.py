"""The router process: receives requests, sends plans to the ranks and replies to the HTTP workers, one step a loop."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import NamedTuple

from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process, Stop
from mmserve.ipc.events.publisher import Publisher
from mmserve.ipc.faults import FaultPoint
from mmserve.ipc.links import cluster_key
from mmserve.ipc.links.channel import Receiver
from mmserve.ipc.links.endpoints import num_http_endpoints
from mmserve.messages.request import EngineInbound
from mmserve.messages.step import RankReady, StepPlan
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.router.encoder_links import EncoderLinks
from mmserve.router.engine_client import EngineClient
from mmserve.router.inbox import Inbox
from mmserve.router.kv_cache.listener import CacheListener, Listeners
from mmserve.router.kv_events.feed import EventFeed
from mmserve.router.kv_events.recorder import BlockRecorder
from mmserve.router.output import OutputSender
from mmserve.router.reports.arena_link import ArenaLink
from mmserve.router.reports.feed import ReportFeed
from mmserve.router.reports.held_beginnings import HeldBeginnings
from mmserve.router.reports.held_pictures import HeldPictures
from mmserve.router.reports.publisher import ReportPublisher
from mmserve.router.reports.reporter import Reporter
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from mmserve.router.stats import report_state


def run(process: Process) -> None:
    """Serves until Stop is raised."""
    deployment, endpoints = process.deployment, process.endpoints
    config = deployment.config
    with suppress(Stop), ExitStack() as stack:
        heartbeat = stack.enter_context(closing(HeartbeatSender(endpoints, process.name)))
        metrics = stack.enter_context(closing(MetricsClient(endpoints, process.name)))
        receiver: Receiver[EngineInbound] = stack.enter_context(closing(Receiver(endpoints.router, EngineInbound)))
        output = stack.enter_context(
            closing(OutputSender(endpoints, num_http_endpoints(deployment.config.http_workers)))
        )
        # A text model has no visual servers, and a socket without a peer wakes up 30 times a second to reconnect.
        visual_workers = config.visual_workers if deployment.model.vision is not None else 0
        encoders = stack.enter_context(closing(EncoderLinks(endpoints, visual_workers)))
        ranks_here, other_nodes = len(deployment.ranks_here), config.nnodes > 1
        engine = stack.enter_context(closing(EngineClient(endpoints, ranks_here, heartbeat, other_nodes=other_nodes)))
        publisher = stack.enter_context(_publisher(config)) if config.kv_events_endpoint is not None else None
        ready = engine.wait_ready()
        feed = None if publisher is None else _feed(process, publisher, ready.block_tokens)
        epoch = secrets.randbits(62)
        beginnings = None if config.reports_endpoint is None else HeldBeginnings(epoch)
        listeners: list[CacheListener | None] = [None if feed is None else feed.recorder, beginnings]
        scheduler = _scheduler(deployment, ready, metrics, [each for each in listeners if each is not None])
        metrics.add("cache_config_info", 1, str(ready.block_tokens), str(ready.num_blocks))
        process.ready({"kv_blocks": ready.num_blocks, "kv_tokens": ready.num_blocks * ready.block_tokens})
        depth = 2 if deployment.overlaps else 1
        inbox, faults = Inbox(receiver), process.fault_point()
        reports = None
        if beginnings is not None:
            pictures = HeldPictures(epoch)
            reporter = Reporter(config.max_num_seqs, pictures, beginnings, scheduler.kv, deployment.text_facts)
            arena = stack.enter_context(ArenaLink(endpoints))
            reports = ReportFeed(stack.enter_context(_report_publisher(config)), arena, reporter)
        serve(inbox, scheduler, engine, encoders, output, metrics, heartbeat, faults, depth, feed, reports)


def serve(
    inbox: Inbox,
    scheduler: Scheduler,
    engine: EngineClient,
    encoders: EncoderLinks,
    output: OutputSender,
    metrics: MetricsClient,
    heartbeat: HeartbeatSender,
    faults: FaultPoint,
    depth: int,
    feed: EventFeed | None = None,
    reports: ReportFeed | None = None,
) -> None:
    """The router's loop, with at most ``depth`` plans in flight. Idle, it sleeps and wakes for heartbeats only.

    Has no boundary for one message or step: after an error the scheduler's state may be wrong, so the engine restarts.

    The ranks wait for plans, so replies and reports of a step follow the next step's plan. With depth 2 the ranks have
    the next plan before they finish the last one. The reply to an abort is still sent only after the result of every
    plan that computes the sequence: no rank reads images after their leases may have ended. So replies to messages wait
    for the next result.

    With visual servers, new requests are received while a step is computed as well, so that these need not wait for it.
    Where they share the ranks' cores, the next plan may have to wait a while (``Scheduler.pause_s``); replies never do.
    """
    done: _Done | None = None
    pause_s = 0.0
    while True:
        waits = (scheduler.idle or pause_s > 0) and done is None
        messages = inbox.take(block=waits, timeout_s=min(pause_s or INTERVAL_S, INTERVAL_S))
        replies = scheduler.take_replies()
        output.drop_dead(messages)
        for message in messages:
            scheduler.receive(message)
        if reports is not None:
            reports.received(messages)
        faults.pass_through()
        started_s = time.perf_counter()
        pause_s = scheduler.pause_s()
        while not pause_s and engine.num_in_flight < depth and (plan := scheduler.schedule()):
            output.send_all(scheduler.take_starts())
            engine.send(plan)
            if feed is not None:
                feed.planned()
        schedule_s = time.perf_counter() - started_s
        encoders.send_all(scheduler.take_encoder_messages())
        if not engine.num_in_flight:
            replies += scheduler.take_replies()
        output.send_all(replies)
        if reports is not None:
            reports.replied(replies)
            reports.publish_due(scheduler)
        if done is not None:
            _report_step(metrics, done)
        report_state(scheduler, metrics)
        heartbeat.beat(busy=not scheduler.idle)
        done = None
        if engine.num_in_flight:
            while encoders.has_any and not inbox.is_held and not engine.wait(inbox.receiver):
                early = inbox.take_early()
                for message in early:
                    scheduler.receive(message)
                if reports is not None:
                    reports.received(early)
                encoders.send_all(scheduler.take_encoder_messages())
            plan, result = engine.receive()
            scheduler.apply(plan, result)
            if feed is not None:
                feed.computed()
            done = _Done(plan, schedule_s, time.perf_counter() - started_s)


class _Done(NamedTuple):
    """A plan whose result was applied, and seconds: until it was sent, until its result was applied."""

    plan: StepPlan
    schedule_s: float
    step_s: float


def _report_step(metrics: MetricsClient, done: _Done) -> None:
    if steps := done.plan.steps:
        metrics.add("iteration_tokens", sum(step.num_tokens + len(step.draft) + step.num_proposed for step in steps))
        metrics.add("schedule_seconds", done.schedule_s)
        metrics.add("step_seconds", done.step_s)


def _publisher(config: Config) -> Publisher:
    assert config.kv_events_endpoint is not None
    return Publisher(
        config.kv_events_endpoint,
        config.kv_events_replay_endpoint,
        config.kv_events_topic or "",
        int(config.kv_events_buffer_mb * 2**20),
    )


def _feed(process: Process, publisher: Publisher, block_tokens: int) -> EventFeed:
    """Tells that the cache is empty, as it is after every start."""
    recorder = BlockRecorder(block_tokens, process.deployment.model.image_token_id or 0)
    form = process.deployment.config.kv_events_format
    return EventFeed(publisher, recorder, form)


def _report_publisher(config: Config) -> ReportPublisher:
    assert config.reports_endpoint is not None
    assert config.cluster_key_file is not None, "checked with the other options"
    return ReportPublisher(config.reports_endpoint, cluster_key.read(Path(config.cluster_key_file)))


def _scheduler(
    deployment: Deployment, ready: RankReady, metrics: MetricsClient, listeners: Sequence[CacheListener] = ()
) -> Scheduler:
    """A scheduler for the KV cache that the ranks have allocated."""
    has_vision = deployment.model.vision is not None
    config = SchedulerConfig(
        max_num_seqs=deployment.config.max_num_seqs,
        max_num_batched_tokens=deployment.config.max_num_batched_tokens,
        max_model_len=deployment.max_model_len,
        max_step_s=deployment.config.max_step_ms / 1e3,
        whole_images=deployment.model.text.attends_whole_images,
        ngram_drafts=deployment.config.speculative == "ngram",
        draft_context=0 if deployment.draft is None else deployment.draft.text.max_position,
        draft_times=ready.draft,
        shares_cores=deployment.device == "cpu" and has_vision and deployment.config.encoders is None,
    )
    scheduler = Scheduler(
        config,
        num_blocks=ready.num_blocks,
        block_tokens=ready.block_tokens,
        now=time.monotonic,
        record=metrics.add,
        listener=Listeners(listeners) if listeners else None,
    )
    scheduler.observe_chunk(ready.chunk_tokens, ready.chunk_s)
    return scheduler
