"""The reports of one router process: at most four a second, whenever the router's loop runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from mmserve.cluster.scale.reports import encoded
from mmserve.messages.reply import SequenceStages, TokenReply
from mmserve.messages.request import EngineInbound
from mmserve.router.reports.publisher import ReportPublisher
from mmserve.router.reports.reporter import Reporter

_INTERVAL_S = 0.25


class ReportFeed:
    """Called by the router's loop, which wakes up for heartbeats when it has nothing to do: so often, at least, fronts
    hear of the server."""

    def __init__(
        self, publisher: ReportPublisher, reporter: Reporter, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._publisher = publisher
        self._reporter = reporter
        self._now = now
        self._next_s = now()

    def received(self, messages: Iterable[EngineInbound]) -> None:
        """See Reporter."""
        self._reporter.received(messages)

    def replied(self, replies: Iterable[tuple[int, TokenReply | SequenceStages]]) -> None:
        """See Reporter."""
        self._reporter.replied(replies)

    def publish_due(self, num_waiting: int, num_running: int) -> None:
        """Send a report if it is time for one."""
        if (now_s := self._now()) >= self._next_s:
            self._next_s = now_s + _INTERVAL_S
            self._publisher.publish(encoded(self._reporter.report(num_waiting, num_running)))
