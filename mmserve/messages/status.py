"""Messages to the metrics server and the health server."""

from __future__ import annotations

import msgspec

from mmserve.messages.reply import ServerPhase


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One sample of a metric in ``metrics.names``: added to a counter, set on a gauge, observed by a histogram."""

    name: str
    value: float
    labels: tuple[str, ...] = ()
    """Label values, in the order of the metric's label names."""


class MetricBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="metrics"):
    """Samples of one process. Gauges are kept per process and summed when scraped.

    An empty batch, sent by the supervisor, means that the process has ended: its gauges are removed.
    """

    process: str
    samples: tuple[MetricSample, ...]


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="heartbeat"):
    """Sent by a process's main loop, so that a stuck loop is noticed."""

    process: str
    progress: int
    """Grows whenever work was finished."""
    busy: bool = False
    """True if there is work on which the process should make progress."""


HealthInbound = Heartbeat | ServerPhase
