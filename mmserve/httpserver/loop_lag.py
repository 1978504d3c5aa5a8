"""How late the event loop is: what every request, probe and stream of this worker waits at the very least.

Knows nothing of what runs on the loop.
"""

from __future__ import annotations

import asyncio
import time

from mmserve.metrics.client import MetricsClient

INTERVAL_S = 0.05


async def watch_lag(metrics: MetricsClient) -> None:
    """Sample ``event_loop_lag_seconds`` for ever.

    The samples go out when the worker flushes: a message for each would be most of what an idle server does.
    A stall counts for every moment that fell into it, not once: each was a moment at which something could be due.
    """
    due_s = time.monotonic() + INTERVAL_S
    while True:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        now_s = time.monotonic()
        while due_s <= now_s:
            metrics.add_later("event_loop_lag_seconds", now_s - due_s)
            due_s += INTERVAL_S
