"""The cache server process: owns the table of the arena and serves it until SIGTERM. It never touches payload bytes."""

from __future__ import annotations

import logging
import secrets
from contextlib import AbstractContextManager, nullcontext

import msgspec

from mmserve.cache_server.embedding_events import publishing
from mmserve.cache_server.quotas import LeaseBudgets
from mmserve.cache_server.rpc.services import serving
from mmserve.cache_server.shared_table import SharedMediaTable, Snapshot
from mmserve.cache_server.stored_keys import StoredKeys, telling_router
from mmserve.cache_server.table import MediaTable
from mmserve.cache_server.waiting.decode_permits import DecodePermits
from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN, Deployment
from mmserve.config.resolved.process import Process
from mmserve.ipc.arena import Arena
from mmserve.ipc.faults import FaultPoint
from mmserve.ipc.status_http import Page, serving_pages
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.byte_budget import MIB

_REPORT_INTERVAL_S = INTERVAL_S / 2
_TABLE_NBYTES = 16 << 20
"""Memory that about 25,000 images need in the table."""
_OBJECT_NBYTES = 16
_KEPT_EVERY = 50_000
"""Objects; one of them stays in each MiB, the unit in which the interpreter gives memory back."""
logger = logging.getLogger(__name__)


def new_table(arena: Arena, budgets: LeaseBudgets | None = None) -> MediaTable:
    """An empty table over the arena. Generations, item ids and token ids start at random, unlike any earlier start."""
    first_generation = secrets.randbits(61) | 1 << 61
    held = arena.begin_epoch(first_generation)
    table = MediaTable(
        arena.nbytes,
        first_generation=first_generation,
        first_item_id=secrets.randbits(61),
        first_token=FIRST_VIRTUAL_TOKEN * (1 + secrets.randbits(29)),
        arena=arena,
        budgets=budgets,
    )
    table.hold(held)
    return table


def mapped_memory(nbytes: int) -> list[object]:
    """Take memory for small objects from the kernel now, and not page by page (3 us each) while clients wait.

    The process keeps it, free for use, as long as the caller keeps the objects returned.
    """
    return [object() for _ in range(nbytes // _OBJECT_NBYTES)][::_KEPT_EVERY]


def run(process: Process) -> None:
    """Serve until Stop is raised in this thread."""
    assert process.arena is not None, "the cache server needs the arena"
    kept = mapped_memory(_TABLE_NBYTES)
    table = _table(process.deployment, process.arena, process.fault_point())
    heartbeats = HeartbeatSender(process.endpoints, process.name)
    metrics = MetricsClient(process.endpoints, process.name)
    warning = SpaceWarning(process.arena.nbytes)
    reported: set[tuple[str, str]] = set()
    try:
        with (
            publishing(process.deployment.config) as feed,
            _telling_router(process) as stored_keys,
            _serving_drawing(process, table, process.arena.nbytes),
            serving(table, process.endpoints) as wait,
        ):
            process.ready({"arena_nbytes": process.arena.nbytes})
            serves = True
            while True:
                table.end_silent()
                snapshot = table.snapshot()
                warning.check(snapshot)
                _report(metrics, snapshot, process.arena.nbytes, reported)
                changes = table.take_embedding_changes()
                if feed is not None:
                    feed.publish(changes)
                if stored_keys is not None:
                    stored_keys.publish(changes)
                heartbeats.beat(busy=not serves, progressed=serves)
                serves = wait(_REPORT_INTERVAL_S)
    finally:
        metrics.close()
        heartbeats.close()
        kept.clear()


def _telling_router(process: Process) -> AbstractContextManager[StoredKeys | None]:
    """None without --reports-endpoint."""
    if process.deployment.config.reports_endpoint is None:
        return nullcontext()
    return telling_router(process.endpoints)


def _serving_drawing(process: Process, table: SharedMediaTable, arena_nbytes: int) -> AbstractContextManager[None]:
    """With --enable-admin, answer ``/arena`` to the metrics server: what is in the arena, made when it is asked for."""
    if not process.deployment.config.enable_admin:
        return nullcontext()

    def page(path: str) -> Page | None:
        return Page(msgspec.json.encode(table.drawing(arena_nbytes))) if path == "/arena" else None

    return serving_pages(process.endpoints.cache_http, page)


class SpaceWarning:
    """Tells the operator, once, that requests wait for space in the arena."""

    def __init__(self, arena_nbytes: int) -> None:
        self._arena_nbytes = arena_nbytes
        self._is_logged = False

    def check(self, snapshot: Snapshot) -> None:
        if snapshot.num_waiting and not self._is_logged:
            self._is_logged = True
            logger.warning(
                "arena of %.0f MiB: all of it is in use, and requests wait for space; raise --mm-cache-gb",
                self._arena_nbytes / MIB,
            )


def _table(deployment: Deployment, arena: Arena, faults: FaultPoint) -> SharedMediaTable:
    budgets, max_requests = deployment.budgets, deployment.config.max_mm_preprocess_concurrency
    table = new_table(arena, LeaseBudgets(budgets.data_nbytes, budgets.embed_nbytes))
    config = deployment.config
    if config.embedding_events_endpoint is not None or config.reports_endpoint is not None:
        table.follow_embeddings()
    return SharedMediaTable(table, DecodePermits(max_requests, budgets.pixel_nbytes), faults=faults)


def _report(metrics: MetricsClient, snapshot: Snapshot, arena_nbytes: int, reported: set[tuple[str, str]]) -> None:
    """``reported``: label pairs sent before; those without extents now are sent as zero."""
    reported |= snapshot.usage.keys()
    for label in reported:
        count, nbytes = snapshot.usage.get(label, (0, 0))
        metrics.add("mm_slots", count, *label)
        metrics.add("mm_slot_bytes", nbytes, *label)
    for (name, *labels), count in snapshot.counters.items():
        metrics.add(name, count, *labels)
    metrics.add("mm_arena_bytes", arena_nbytes)
    metrics.add("mm_leases", snapshot.num_leases)
    metrics.add("mm_decoding", snapshot.num_permits)
    metrics.add("mm_decoding_peak", snapshot.peak_permits)
    metrics.add("mm_decode_waiting", snapshot.num_permits_waiting)
    for form, budget in snapshot.budgets.items():
        metrics.add_budget(form, budget)
