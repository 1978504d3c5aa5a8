"""The page ``/state`` of the metrics server: makes the server's state from what several processes know.

This process owns the last hour, so all HTTP workers show the same. Without a reader only the history is kept: one look
at the metrics every few seconds. With readers, however many, each other process is asked at most once a second.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.status_client import read_page, read_pages
from mmserve.ipc.status_http import Page
from mmserve.messages.server_state import (
    MAX_REQUESTS,
    ArenaState,
    HistoryPoint,
    ProcessState,
    RequestState,
    ServerState,
)
from mmserve.messages.status import HealthReport
from mmserve.monitoring.metrics.history import INTERVAL_S, NUM_SAMPLES, History
from mmserve.monitoring.metrics.memory import Memory, ProcessMemory
from mmserve.monitoring.metrics.series import Sums, sums_of
from mmserve.monitoring.metrics.store import read_all
from mmserve.monitoring.metrics.summary import COLUMNS, last_hour_of, load_of, point_of

_FRESH_S = 0.9
"""A state this old is shown again. Readers ask every second."""
_MEMORY_S = 5.0
"""The same for memory, which takes longest to read."""
_TIMEOUT_S = 1.0
_PATH = "/state"
_AFTER = "/state/after/"
_health = msgspec.json.Decoder(HealthReport)
_requests = msgspec.json.Decoder(tuple[RequestState, ...])
_arena = msgspec.json.Decoder(ArenaState)
T = TypeVar("T")
logger = logging.getLogger(__name__)


class StatePage:
    """Thread-safe. ``slots``: sequences that may run at once. ``http_endpoints``: of HTTP workers."""

    def __init__(self, endpoints: Endpoints, memory: ProcessMemory, slots: int, http_endpoints: int) -> None:
        self._endpoints = endpoints
        self._memory = memory
        self._slots = slots
        self._http_endpoints = http_endpoints
        self._state_lock = threading.Lock()
        """Held while other processes are asked, for up to seconds."""
        self._history_lock = threading.Lock()
        self._history = History(COLUMNS)
        self._sampled_s = -math.inf
        self._points: deque[HistoryPoint] = deque(maxlen=NUM_SAMPLES - 1)
        self._state: ServerState | None = None
        self._made_s = -math.inf
        self._memory_by_title: Mapping[str, Memory] = {}
        self._memory_s = -math.inf

    def sample(self) -> None:
        """Add to the history, if it is time. Call it every second."""
        at_s = time.monotonic()
        if at_s - self._sampled_s < INTERVAL_S:
            return
        try:
            sums = self._sums()
        except OSError as error:
            logger.warning("the last hour will lack some seconds: %s", error)
            return
        with self._history_lock:
            self._sampled_s = at_s
            self._history.add(round(time.time(), 3), at_s, sums)

    def page(self, path: str) -> Page | None:
        """``/state``, or ``/state/after/SECONDS`` with the points of the history after that time of the clock."""
        after_s = -math.inf
        if path.startswith(_AFTER):
            try:
                after_s = float(path.removeprefix(_AFTER))
            except ValueError:
                return None
        elif path != _PATH:
            return None
        with self._state_lock:
            state = self._fresh_state()
            points = tuple(point for point in self._points if point.time_s > after_s)
        return Page(msgspec.json.encode(msgspec.structs.replace(state, history=points)))

    def _fresh_state(self) -> ServerState:
        if self._state is None or time.monotonic() - self._made_s >= _FRESH_S:
            self._state = self._make()
            self._made_s = time.monotonic()
        return self._state

    def _make(self) -> ServerState:
        now_s, sums, endpoints = time.time(), self._sums(), self._endpoints
        with self._history_lock:
            new = list(self._history.spans(self._points[-1].time_s if self._points else -math.inf))
            last_hour = self._history.until(now_s, time.monotonic(), sums)
        self._points.extend(map(point_of, new))
        health, arena = self._health(), _decoded(_arena, read_page(endpoints.cache_http, "/arena", _TIMEOUT_S))
        requests = self._requests()
        missing = {"processes": health, "arena": arena, "requests": requests}
        return ServerState(
            time_s=round(now_s, 3),
            phase=health.phase if health else "unknown",
            detail=health.detail if health else "",
            reasons=health.reasons if health else ("the health server does not answer",),
            uptime_s=health.supervisor.uptime_s if health else 0.0,
            processes=self._processes(health) if health else (),
            load=load_of(sums, self._slots),
            requests=tuple(requests or ()),
            last_hour=last_hour_of(last_hour, sums),
            history=(),
            arena=arena,
            missing=tuple(name for name, found in missing.items() if found is None),
        )

    def _sums(self) -> Sums:
        return sums_of(read_all(self._endpoints.metrics))

    def _health(self) -> HealthReport | None:
        with contextlib.suppress(OSError):
            url = self._endpoints.health_url.read_text()
            return _decoded(_health, read_page(url, "/ready", _TIMEOUT_S))
        return None

    def _requests(self) -> Sequence[RequestState] | None:
        """The oldest requests of all HTTP workers. None if one of them does not answer."""
        sockets = filter(Path.exists, map(self._endpoints.requests_http, range(self._http_endpoints)))
        rows: list[RequestState] = []
        for page in read_pages([*sockets], "/", _TIMEOUT_S):
            if (found := _decoded(_requests, page)) is None:
                return None
            rows += found
        return sorted(rows, key=lambda row: -row.age_s)[:MAX_REQUESTS]

    def _processes(self, health: HealthReport) -> tuple[ProcessState, ...]:
        now_s = time.monotonic()
        if now_s - self._memory_s >= _MEMORY_S:
            self._memory_by_title = {memory.process: memory for memory in self._memory.read()}
            self._memory_s = now_s
        supervisor = ProcessState(
            name="supervisor",
            title="supervisor",
            pid=health.supervisor.pid,
            state="ready",
            uptime_s=health.supervisor.uptime_s,
            restarts=0,
            heartbeat_age_s=None,
            busy=False,
            **self._memory_of("supervisor"),
        )
        others = [
            ProcessState(
                name=name,
                title=process.title,
                pid=process.pid,
                state=process.state,
                uptime_s=process.uptime_s,
                restarts=process.restarts,
                heartbeat_age_s=process.heartbeat_age_s,
                busy=process.busy,
                **self._memory_of(process.title),
            )
            for name, process in health.processes.items()
        ]
        return supervisor, *others

    def _memory_of(self, title: str) -> dict[str, int | None]:
        memory = self._memory_by_title.get(title)
        return {"rss_bytes": memory.rss if memory else None, "pss_bytes": memory.pss if memory else None}


def _decoded(decoder: msgspec.json.Decoder[T], page: bytes | None) -> T | None:
    """None also for an error's page."""
    with contextlib.suppress(msgspec.DecodeError):
        return None if page is None else decoder.decode(page)
    return None
