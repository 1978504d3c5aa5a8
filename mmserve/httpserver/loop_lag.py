"""Measures the event loop's lag: the least time that any request, probe or stream of this worker waits."""

from __future__ import annotations

import asyncio
import time

from mmserve.monitoring.metrics.client import MetricsClient

INTERVAL_S = 0.05


async def sample_loop_lag(metrics: MetricsClient) -> None:
    """Sample ``event_loop_lag_seconds`` every INTERVAL_S, for ever.

    A stall longer than the interval gives one sample for each interval that fell into it, so that the histogram
    shows the share of time in which a new event would have waited that long.
    """
    due_s = time.monotonic() + INTERVAL_S
    while True:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        now_s = time.monotonic()
        while due_s <= now_s:
            metrics.add("event_loop_lag_seconds", now_s - due_s)
            due_s += INTERVAL_S
