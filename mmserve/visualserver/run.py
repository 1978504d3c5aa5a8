"""The visual server process: loads the vision tower, connects the pipeline's sockets and runs it until SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from mmserve.cache_server.client import MediaCacheClient, connect
from mmserve.config.node_options import encoder_address
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.facts import encoder_facts_of
from mmserve.config.resolved.gpu_memory import BATCH_IMAGES
from mmserve.config.resolved.process import Process
from mmserve.ipc.arena import Arena
from mmserve.ipc.links import cluster_key
from mmserve.ipc.links.channel import AsyncReceiver, Sender
from mmserve.messages.reply import HttpInbound
from mmserve.messages.request import AbortRequest, CountImageRows, EncodeRequest, EngineInbound, VisualInbound
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import DTYPES, platform_for
from mmserve.model_backend.platforms.interface import Platform
from mmserve.model_backend.vision.interface import CountsRows, PixelTensors
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.processors.image_processors import image_processors_for
from mmserve.processors.isolated import IsolatedDecoder
from mmserve.processors.registry import processor_for
from mmserve.runtime.cpu.compute_progress import ComputeProgress
from mmserve.runtime.cpu.core_usage import BusyCores
from mmserve.runtime.memory import allocator
from mmserve.visualserver.batches.encode import HOST, ComputeRows, Encoder, EncoderDevice
from mmserve.visualserver.batches.guarded_decode import GuardedDecoder
from mmserve.visualserver.batches.image_decode import ImageDecoder
from mmserve.visualserver.batches.towers import computing_rows, encoder_device, slices_of
from mmserve.visualserver.batches.work_journal import WorkJournal
from mmserve.visualserver.offload import Offload
from mmserve.visualserver.pipeline import Pipeline
from mmserve.visualserver.queue.batch_queue import BatchQueue
from mmserve.visualserver.queue.permits import PermitClient
from mmserve.visualserver.remote.encoders import Encoders, listening_socket
from mmserve.visualserver.row_counter import RowCounter

_MAX_DECODE_THREADS = 8
_NICENESS = 4
"""Lowers the priority on a CPU, where ranks compute on the same cores: generating text goes before encoding images."""
_BATCH_IMAGES = {"cpu": 4, "cuda": BATCH_IMAGES}
"""By device. The requests of a batch start together, so steps decode more of them at once: that needs images of others
that wait. The decoded pixels of an image on a CPU cost some MiB."""
_CPU_TOWER_IMAGES = 2
"""Of one call of the tower on a CPU. More are not faster (docs/performance.md), and each costs tens of MiB."""
logger = logging.getLogger(__name__)


def run(process: Process) -> None:
    """Serve until SIGTERM. Raises StartupError (a text model, weights that do not fit)."""
    deployment = process.deployment
    if deployment.device == "cpu":
        os.nice(_NICENESS)
    busy_towers = BusyCores(process.endpoints.busy_cores("visualserver"), deployment.config.visual_workers)
    busy_towers.clear(process.index)
    platform = platform_for(
        deployment.device,
        deployment.dtype,
        process.index,
        deployment.activation_dtype,
        kernel_level=deployment.config.kernel_level,
        attention=deployment.config.attention_backend,
        cards=deployment.config.visual_devices,
    )
    platform.use_in_thread()
    platform.set_threads(_threads(deployment))
    with allocator.return_freed_memory():
        tower = load_tower(deployment.model, platform, process.progress)
    platform.prefault_for_images(deployment, _tower_images(deployment))
    counter = _row_counter(process, tower) if isinstance(tower, CountsRows) else None
    processor = processor_for(deployment.model)
    assert processor is not None, "a text model has no visual server"
    slices = slices_of(tower, process, platform)
    resize = platform.picture_resize()
    rows_of = computing_rows(tower, processor.form, platform, slices, resize)
    rows_of = _sharing_cores(rows_of, process, platform, busy_towers)
    device = encoder_device(platform, process.arena, slices, takes_whole=resize is not None)
    serve(process, rows_of, counter, device)


def serve(
    process: Process,
    tower: ComputeRows,
    counter: RowCounter | None = None,
    device: EncoderDevice = HOST,
) -> None:
    """Serve with this tower until SIGTERM. A SIGTERM before the event loop handles it raises Stop.

    ``counter``: of a tower that counts rows. It is closed. ``device``: the tower's.
    """
    cache = connect(process.endpoints, process.name, batched=process.deployment.config.enable_concurrent_alloc)
    decode_threads = min(_MAX_DECODE_THREADS, _threads(process.deployment))
    with ThreadPoolExecutor(decode_threads, "pixels") as pool:
        try:
            asyncio.run(_serve(process, tower, cache, pool, counter, device))
        finally:
            cache.close()
            if counter is not None:
                counter.close()


def _row_counter(process: Process, tower: CountsRows) -> RowCounter:
    return RowCounter(tower, lambda worker: Sender(process.endpoints.http(worker), HttpInbound))


def _sharing_cores(tower: ComputeRows, process: Process, platform: Platform, busy_towers: BusyCores) -> ComputeRows:
    """The tower, announcing to ranks the cores on which it computes. The CPU kernels also use cores of idle ranks."""
    deployment = process.deployment
    share = _threads(deployment)
    busy_ranks = BusyCores(process.endpoints.busy_cores("model_backend"), deployment.config.tp)
    platform.release_torch_threads()
    all_cores = deployment.cpu_threads // deployment.config.visual_workers
    platform.share_cores(all_cores, busy_ranks.counts, at_least=share)
    platform.choose_ways(deployment.config.kernel_ways)

    faults = process.fault_point()

    def compute(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        faults.pass_through()
        with busy_towers.computing(process.index, share):
            return tower(pictures)

    return compute


def _threads(deployment: Deployment) -> int:
    """Threads of one visual server. All of them together have half as many as the ranks, which compute meanwhile."""
    return max(1, deployment.cpu_threads // (2 * deployment.config.visual_workers))


def _batch_images(deployment: Deployment) -> int:
    return deployment.config.visual_batch_size or _BATCH_IMAGES[deployment.device]


def _tower_images(deployment: Deployment) -> int:
    batch = _batch_images(deployment)
    return min(batch, _CPU_TOWER_IMAGES) if deployment.device == "cpu" else batch


async def _serve(
    process: Process,
    tower: ComputeRows,
    cache: MediaCacheClient,
    pool: ThreadPoolExecutor,
    counter: RowCounter | None = None,
    device: EncoderDevice = HOST,
) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    inbox: AsyncReceiver[VisualInbound] = AsyncReceiver(process.endpoints.visual(process.index), VisualInbound)
    router: Sender[EngineInbound] = Sender(process.endpoints.router, EngineInbound)
    metrics = MetricsClient(process.endpoints, process.name)
    pipeline = _pipeline(process, tower, cache, pool, metrics, router.send, device)
    loops = asyncio.gather(
        _receive(inbox, pipeline, router.send, counter), pipeline.run(), _beat(process, pipeline, device.progress)
    )
    process.ready({})
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((loops, stopping), return_when=asyncio.FIRST_COMPLETED)
        if loops.done():
            loops.result()
    finally:
        loops.cancel()
        stopping.cancel()
        await asyncio.gather(loops, stopping, return_exceptions=True)
        pipeline.close()
        for socket in (inbox, router, metrics):
            socket.close()


def _pipeline(
    process: Process,
    tower: ComputeRows,
    cache: MediaCacheClient,
    pool: ThreadPoolExecutor,
    metrics: MetricsClient,
    emit: Callable[[EngineInbound], object],
    device: EncoderDevice,
) -> Pipeline:
    deployment, arena = process.deployment, process.arena
    processors = image_processors_for(deployment.model)
    assert arena is not None, "a visual server needs the arena"
    assert processors is not None, "a text model has no visual server"
    config = deployment.config
    if config.prefault:
        arena.map_all()
    # Images that are decoded, one a thread, and images that are encoded.
    journal = WorkJournal(process.endpoints.visual_work(process.index), 2 * _batch_images(deployment))
    pictures = GuardedDecoder(processors, IsolatedDecoder(deployment.model), journal, whole=device.takes_whole)
    queue = BatchQueue(_batch_images(deployment), config.max_queued_mm_requests)
    return Pipeline(
        queue,
        PermitClient(cache, config.mm_queue_timeout),
        ImageDecoder(pictures, arena, cache, pool),
        Encoder(tower, DTYPES[deployment.activation_dtype], arena, cache, journal, _tower_images(deployment), device),
        metrics,
        emit,
        _batch_images(deployment),
        None if config.encoders is None else Offload(queue, _encoders(process, arena), cache),
        device.begin,
    )


def _encoders(process: Process, arena: Arena) -> Encoders:
    """Listens at once. Raises StartupError."""
    deployment, config = process.deployment, process.deployment.config
    assert config.cluster_key_file is not None
    first = encoder_address("--encoders", config.encoders)
    return Encoders(
        listening_socket(first.host, first.port + process.index),
        cluster_key.read(Path(config.cluster_key_file)).encoders,
        encoder_facts_of(deployment),
        config.visual_workers,
        arena,
        config.node_timeout,
    )


async def _receive(
    inbox: AsyncReceiver[VisualInbound],
    pipeline: Pipeline,
    emit: Callable[[EngineInbound], object],
    counter: RowCounter | None = None,
) -> None:
    async for message in inbox:
        try:
            if not isinstance(message, CountImageRows):
                pipeline.receive(message)
            elif counter is not None:
                counter.receive(message)
        except Exception:  # the boundary of one message
            logger.exception("a message failed: %s", getattr(message, "id", type(message).__name__))
            if (answer := _instead_of(message)) is not None:
                emit(answer)


def _instead_of(message: VisualInbound) -> AbortRequest | None:
    """What the router gets when a message has failed here, so that its client does not wait for ever."""
    if not isinstance(message, EncodeRequest):
        return None
    return AbortRequest(
        id=message.id,
        reply_to=message.reply_to,
        reason="internal_error",
        message="the visual server could not take this request",
        attempt=message.attempt,
    )


async def _beat(process: Process, pipeline: Pipeline, tower_progress: Callable[[], int]) -> None:
    """Send heartbeats from the serving event loop. They report progress when batches are finished, and while threads
    decode or encode: one large image may take longer than --stuck-timeout on a busy machine, or beside ranks on its GPU
    (``EncoderDevice.progress``). A decoder in an endless loop computes too, so that this counts for a limited time."""
    heartbeats, num_seen = HeartbeatSender(process.endpoints, process.name), 0
    computed = ComputeProgress()
    try:
        while True:
            num_done = pipeline.num_finished + tower_progress()
            progressed = (computed.made() and not pipeline.is_overdue) or num_done > num_seen
            heartbeats.beat(busy=pipeline.busy, progressed=progressed)
            num_seen = num_done
            await asyncio.sleep(INTERVAL_S / 2)
    finally:
        heartbeats.close()
