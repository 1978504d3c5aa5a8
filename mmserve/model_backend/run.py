"""The model_backend process: one tensor-parallel rank that computes the router's step plans."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from mmserve.config.config import Config
from mmserve.config.resolved.process import Process
from mmserve.ipc.links.lockstep import LockstepReceiver, LockstepSender
from mmserve.messages.step import RankInbound, RankOutbound, RankReady, StepResult
from mmserve.model_backend import distributed
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.meeting import meeting_of
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.serving import PlansAhead, PlansAtOnce, Send, serve
from mmserve.model_backend.worker.embedding_source import SentRows
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.monitoring.health.heartbeat import HeartbeatSender
from mmserve.monitoring.health.long_work import LongWork
from mmserve.runtime.cpu.core_usage import BusyCores
from mmserve.runtime.memory import allocator
from mmserve.runtime.startup_timer import StartupTimer
from mmserve.runtime.step_times import StepTimes

logger = logging.getLogger(__name__)


def run(process: Process) -> None:
    """Load, warm up, report readiness, then compute plans until stopped."""
    deployment, endpoints, rank = process.deployment, process.endpoints, process.index
    here, among = rank - deployment.ranks_here.start, len(deployment.ranks_here)
    startup_timer = StartupTimer()
    startup_timer.end("process and imports")
    platform = platform_for(
        deployment.device,
        deployment.dtype,
        here,
        deployment.activation_dtype,
        kernel_level=deployment.config.kernel_level,
        attention=deployment.config.attention_backend,
    )
    platform.use_in_thread()
    platform.place(here, among)
    platform.set_threads(deployment.cpu_threads // among)
    with ExitStack() as stack:
        inbox: LockstepReceiver[RankInbound] = stack.enter_context(
            closing(LockstepReceiver(endpoints.rank(rank), RankInbound))
        )
        outbox: LockstepSender[RankOutbound] = stack.enter_context(
            closing(LockstepSender(endpoints.rank_results, RankOutbound))
        )
        heartbeat = stack.enter_context(closing(HeartbeatSender(endpoints, process.name)))
        meeting = stack.enter_context(meeting_of(process))
        tp = stack.enter_context(distributed.join(rank, deployment.config.tp, meeting, platform.device))
        tp = with_sums(deployment.config, tp, platform)
        startup_timer.end("kernels and links")
        sent_rows = SentRows() if deployment.config.node_rank else None
        if process.arena is not None and deployment.config.prefault:
            process.arena.map_all()
        busy_visual_servers = BusyCores(endpoints.busy_cores("visualserver"), deployment.config.visual_workers)
        platform.share_cores(deployment.cpu_threads // among, busy_visual_servers.counts, among=among)
        busy_ranks = BusyCores(endpoints.busy_cores("model_backend"), among)
        busy_ranks.clear(here)
        with allocator.return_freed_memory():
            runner = ModelRunner(deployment, tp, sent_rows or process.arena, platform, process.progress, startup_timer)
        platform.release_torch_threads()
        # First, so that the time of the warm-up's chunk is that of later ones.
        platform.prefault_for_steps(deployment)
        chunk = runner.warm_up()
        startup_timer.end("warm-up")
        logger.info("started within %s", startup_timer)
        if rank == 0:
            ready = RankReady(
                num_blocks=runner.num_blocks,
                block_tokens=runner.block_tokens,
                chunk_tokens=chunk.num_tokens,
                chunk_s=chunk.seconds,
                draft=chunk.draft,
            )
            outbox.send(ready)
        runner.faults = process.fault_point()  # the warm-up is no unit of work
        process.ready(_details(process, runner, platform))
        long_steps = stack.enter_context(LongWork(heartbeat, counts_cpu_time=deployment.device == "cpu"))
        computing = partial(_computing, long_steps, busy_ranks, here, deployment.cpu_threads // among)
        send: Send = outbox.send if rank == 0 else _unsent
        if platform.transfers().late:
            step_times = StepTimes(endpoints.step_times(), among)
            step_times.write(here, 0, 0.0)  # a predecessor may have been killed while it computed
            ahead = PlansAhead(runner, send, computing, platform.use_in_thread, partial(step_times.write, here))
            serve(inbox, stack.enter_context(ahead), heartbeat, sent_rows)
        else:
            serve(inbox, PlansAtOnce(runner, send, computing), heartbeat, sent_rows)


def with_sums(config: Config, tp: TpGroup, platform: Platform) -> TpGroup:
    """The ranks, which add up as ``--rank-sums`` says."""
    measures = tp.size > 1 and config.nnodes == 1 and config.rank_sums == "auto"
    return platform.with_fastest_sums(tp) if measures else tp


def _unsent(result: StepResult) -> None:
    """The other ranks have the same result as rank 0."""


@contextmanager
def _computing(long_steps: LongWork, busy_ranks: BusyCores, rank: int, num_cores: int) -> Iterator[None]:
    with long_steps.computing(), busy_ranks.computing(rank, num_cores):
        yield


def _details(process: Process, runner: ModelRunner, platform: Platform) -> dict[str, object]:
    return {
        "num_blocks": runner.num_blocks,
        "kv_tokens": runner.num_blocks * runner.block_tokens,
        "dtype": process.deployment.dtype,
        "device": platform.device_name,
    }
