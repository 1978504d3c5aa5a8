"""Whether the client kept up with its own plan. If it did not, its figures are its own and not the server's.

A late client shows in two ways: requests of an open loop leave after the time that was drawn for them, or the thread
that sends and reads computes nearly all the time, so that what arrives waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MIN_LATE_MS = 5.0
"""p99 of how late requests are sent: what an ordinary machine does now and then."""
MAX_LATE_SHARE = 0.05
"""Of the median TTFT, and of the time over which requests were to be sent. Smaller errors are not worth a refusal."""
MAX_CPU_SHARE = 0.8
"""Of the time of a run that the client's thread computes. Above it, waiting for the thread grows fast."""


def why_late(figures: Mapping[str, Any]) -> str:
    """What the client did not keep up with, in words; empty if it did. ``figures``: of ``load.figures``."""
    late_ms, cpu_share = figures["p99_client_late_ms"], figures["client_cpu_share"]
    # Without a single answer the TTFT is nan; all at once take no time.
    matters_ms = [value for value in (figures["p50_ttft_ms"], 1e3 * figures["last_start_s"]) if value > 0]
    reasons = []
    if late_ms > max(MIN_LATE_MS, MAX_LATE_SHARE * min(matters_ms, default=0.0)):
        reasons.append(f"sent requests up to {late_ms:.0f} ms after their time (p99)")
    if cpu_share > MAX_CPU_SHARE:
        reasons.append(f"computed {100 * cpu_share:.0f} % of the time")
    return " and ".join(reasons)
