"""The process of ``mmserve encoder``: a vision tower that encodes pictures for servers on other machines."""

from __future__ import annotations

import os
import queue
import secrets
import socket
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from mmserve.config.node_options import Address, encoder_address
from mmserve.config.resolved.facts import encoder_facts_of
from mmserve.config.resolved.process import Process, Stop
from mmserve.ipc.links import cluster_key
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.platforms.device import DTYPES, platform_for
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.monitoring.health.long_work import LongWork
from mmserve.processors.image_processors import image_processors_for
from mmserve.processors.isolated import IsolatedDecoder
from mmserve.runtime.errors import StartupError
from mmserve.runtime.memory import allocator
from mmserve.visualserver.batches.guarded_decode import GuardedDecoder
from mmserve.visualserver.batches.towers import computing_rows
from mmserve.visualserver.batches.work_journal import WorkJournal
from mmserve.visualserver.encoder.dialer import Dialer, Job
from mmserve.visualserver.encoder.rows_cache import RowsCache
from mmserve.visualserver.encoder.worker import Worker
from mmserve.visualserver.remote.frames import Hello

_CREDIT_NBYTES = 64 << 20
"""Compressed pictures of one visual server that may wait here."""
_BATCHES = 4
"""So many batches of one visual server may wait here."""
_BATCH_IMAGES = {"cpu": 2, "cuda": 16}
"""By device: pictures of one call of the tower."""


def run(process: Process) -> None:
    """Join, and encode until stopped. Raises StartupError if a server refuses this encoder, or for a text model."""
    deployment = process.deployment
    platform = platform_for(
        deployment.device,
        deployment.dtype,
        0,
        deployment.activation_dtype,
        kernel_level=deployment.config.kernel_level,
        attention=deployment.config.attention_backend,
    )
    platform.use_in_thread()
    platform.set_threads(deployment.cpu_threads)
    processors = image_processors_for(deployment.model)
    if processors is None:
        raise StartupError("mmserve encoder: a text model has no pictures to encode")
    with allocator.return_freed_memory():
        tower = load_tower(deployment.model, platform, process.progress)
    batch = deployment.config.visual_batch_size or _BATCH_IMAGES[deployment.device]
    platform.prefault_for_images(deployment, batch)
    platform.release_torch_threads()
    platform.choose_ways(deployment.config.kernel_ways)
    with suppress(Stop), ExitStack() as stack:
        journal = WorkJournal(process.endpoints.visual_work(process.index), 1)
        isolated = stack.enter_context(closing(IsolatedDecoder(deployment.model)))
        resize = platform.picture_resize()
        pictures = GuardedDecoder(processors, isolated, journal, whole=resize is not None)
        cache = RowsCache(int(deployment.config.mm_cache_gb * 2**30))
        rows_of = computing_rows(tower, processors.server.form, platform, resize=resize)
        dtype = DTYPES[deployment.activation_dtype]
        worker = Worker(pictures.views, rows_of, dtype, cache, batch, platform.release_cached_memory)
        _serve(stack, process, worker, batch)


def _serve(stack: ExitStack, process: Process, worker: Worker, batch: int) -> None:
    jobs: queue.SimpleQueue[Job | StartupError] = queue.SimpleQueue()
    heartbeat = stack.enter_context(closing(HeartbeatSender(process.endpoints, process.name)))
    long_work = stack.enter_context(LongWork(heartbeat, counts_cpu_time=process.deployment.device == "cpu"))
    worker.advanced = long_work.advanced
    servers = _Servers(process, jobs, batch)
    while not servers.joined.is_set():
        if waiting := _next(jobs, batch):
            worker.encode(waiting)
    process.ready({})
    while True:
        taken = _next(jobs, batch)
        heartbeat.beat(busy=bool(taken), progressed=bool(taken))
        if taken:
            with long_work.computing():
                worker.encode(taken)


def _next(jobs: queue.SimpleQueue[Job | StartupError], most: int) -> list[Job]:
    """Waits for the first, for at most a heartbeat's time. Raises StartupError that a thread has met."""
    taken: list[Job] = []
    with suppress(queue.Empty):
        while len(taken) < most:
            job = jobs.get(block=not taken, timeout=INTERVAL_S)
            if isinstance(job, StartupError):
                raise job
            taken.append(job)
    return taken


class _Servers:
    """The visual servers that are dialled: the first, and as many more as it says."""

    def __init__(self, process: Process, jobs: queue.SimpleQueue[Job | StartupError], batch: int) -> None:
        config = process.deployment.config
        assert config.cluster_key_file is not None
        self._first = encoder_address("--join", config.join)
        self._secret = cluster_key.read(Path(config.cluster_key_file)).encoders
        self._hello = Hello(
            name=f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
            facts=encoder_facts_of(process.deployment),
            credit=_CREDIT_NBYTES,
            slots=_BATCHES * batch,
        )
        self._timeout_s, self._jobs = config.node_timeout, jobs
        self._dialled = 0
        self.joined = threading.Event()
        """Set once a visual server has welcomed this encoder."""
        self._dial(1)

    def _dial(self, visual_servers: int) -> None:
        """Called for the first by the main thread, and then by the thread of the first alone."""
        if self._dialled:
            self.joined.set()
        while self._dialled < visual_servers:
            address = Address(self._first.host, self._first.port + self._dialled)
            welcome = self._dial if not self._dialled else _known
            self._dialled += 1
            Dialer(address, self._secret, self._hello, self._timeout_s, self._jobs.put, welcome, self._jobs.put)


def _known(visual_servers: int) -> None:
    """The first visual server has said it already."""
