"""What every process tells about itself: samples to the metrics server, heartbeats to the health server."""

from __future__ import annotations

import msgspec

from mmserve.messages.reply import ServerPhase


class MetricSample(msgspec.Struct, frozen=True, array_like=True):
    """One observation of a metric in ``metrics.names``: counter += value, gauge = value, histogram observes."""

    name: str
    value: float
    labels: tuple[str, ...] = ()
    """Label values in the order of the metric's label names."""


class MetricBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="metrics"):
    """Samples of one process; gauges are kept per process and summed at scrape.

    Without samples, from the supervisor: the process is gone, and its gauges with it.
    """

    process: str
    samples: tuple[MetricSample, ...]


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="heartbeat"):
    """Sent by a process's own main loop, so that a stuck loop is seen. ``busy``: has work it should progress on."""

    process: str
    progress: int
    busy: bool = False


HealthInbound = Heartbeat | ServerPhase
