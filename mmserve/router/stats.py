"""Reports the scheduler's state as gauges. Metrics of single events are recorded where they happen."""

from __future__ import annotations

from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.router.scheduler.scheduler import Scheduler


def report_state(scheduler: Scheduler, metrics: MetricsClient) -> None:
    """Adds the gauges of queue and KV cache."""
    kv = scheduler.kv
    metrics.add("num_requests_running", scheduler.num_running)
    metrics.add("num_requests_waiting", scheduler.num_waiting)
    metrics.add("kv_cache_usage_perc", kv.num_used / kv.num_blocks)
    metrics.add("kv_blocks", kv.num_free, "free")
    metrics.add("kv_blocks", kv.num_cached, "cached")
    metrics.add("kv_blocks", kv.num_used, "held")
