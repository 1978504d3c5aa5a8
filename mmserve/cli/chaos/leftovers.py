"""What an idle server must not hold: metrics that are 0 while no request is under way."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable

_IDLE_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.5
IDLE_GAUGES = (
    ("mm_lease_leaks_total", ""),
    ("num_requests_in_flight", ""),
    ("mm_leases", ""),
    ("mm_decoding", ""),
    ("mm_decode_waiting", ""),
    ("num_requests_running", ""),
    ("num_requests_waiting", ""),
    ("kv_cache_usage_perc", ""),
    ("budget_used_bytes", 'budget="body"'),
    ("budget_used_bytes", 'budget="fetch"'),
    ("budget_used_bytes", 'budget="pixels"'),
)
"""Metrics that are 0 while no request is under way: name, and a label that the sample has."""


async def left_over(metrics: Callable[[], Awaitable[str]]) -> dict[str, float]:
    """Samples that are still not 0 some time after the last request. ``metrics``: gets the text of ``/metrics``."""
    deadline_s = time.monotonic() + _IDLE_TIMEOUT_S
    while True:
        values = not_zero(await metrics())
        if not values or time.monotonic() > deadline_s:
            return values
        await asyncio.sleep(_LOOK_EVERY_S)


def not_zero(text: str) -> dict[str, float]:
    """Samples of IDLE_GAUGES in the text of ``/metrics`` that are not 0, and leaks."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if (match := re.fullmatch(r"mmserve:(\w+)(\{.*\})? (\S+)", line)) is None:
            continue
        name, labels, value = match[1], match[2] or "", float(match[3])
        if value and any(name == gauge and label in labels for gauge, label in IDLE_GAUGES):
            found[name + labels] = value
    return found
