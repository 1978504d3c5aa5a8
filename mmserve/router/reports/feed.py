"""The reports of one router process: at most four a second, whenever the router's loop runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from mmserve.cluster.scale.reports import Holdings, encoded
from mmserve.messages.reply import SequenceStages, TokenReply
from mmserve.messages.request import EngineInbound
from mmserve.router.reports.reporter import Reporter

_INTERVAL_S = 0.25
_SNAPSHOT_S = 1.0
"""Between two snapshots, however many fronts ask."""


class Publishes(Protocol):
    """Implemented by publisher.ReportPublisher."""

    def is_asked(self) -> bool: ...
    def publish(self, data: bytes) -> None: ...


class Arena(Protocol):
    """Implemented by arena_link.ArenaLink."""

    def take(self, stored: Callable[[Holdings], bool]) -> None: ...


class Queue(Protocol):
    """Implemented by scheduler.scheduler.Scheduler."""

    @property
    def num_waiting(self) -> int: ...
    @property
    def full_at(self) -> int: ...


class ReportFeed:
    """Called by the router's loop, which wakes up for heartbeats when it has nothing to do: so often, at least, fronts
    hear of the server. A front that has come or missed something is told everything."""

    def __init__(
        self, publisher: Publishes, arena: Arena, reporter: Reporter, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._publisher = publisher
        self._arena = arena
        self._reporter = reporter
        self._now = now
        self._next_s = self._next_snapshot_s = now()
        self._is_asked = False

    def received(self, messages: Iterable[EngineInbound]) -> None:
        """See Reporter."""
        self._reporter.received(messages)

    def replied(self, replies: Iterable[tuple[int, TokenReply | SequenceStages]]) -> None:
        """See Reporter."""
        self._reporter.replied(replies)

    def publish_due(self, queue: Queue) -> None:
        """Send a report if it is time for one."""
        if (now_s := self._now()) < self._next_s:
            return
        self._next_s = now_s + _INTERVAL_S
        self._arena.take(self._reporter.pictures.stored)
        self._is_asked |= self._publisher.is_asked()
        snapshot = self._is_asked and now_s >= self._next_snapshot_s
        if snapshot:
            self._is_asked, self._next_snapshot_s = False, now_s + _SNAPSHOT_S
        self._publisher.publish(encoded(self._reporter.report(queue.num_waiting, queue.full_at, snapshot=snapshot)))
