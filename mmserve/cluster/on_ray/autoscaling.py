"""Ray Serve's autoscaling by what replicas report (``scale/autoscaling``), in place of its own count of requests."""

from __future__ import annotations

from typing import Any

from ray.serve.config import AutoscalingContext

from mmserve.cluster.scale.autoscaling import Pressure, wanted

USED, WAIT_S = "mmserve_used", "mmserve_wait_s"
"""Names of what ``node.Node.record_autoscaling_stats`` records."""


def policy(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """For AutoscalingPolicy(policy_function="mmserve.cluster.on_ray.autoscaling:policy"). Keeps no state."""
    metrics = context.aggregated_metrics or {}
    waits = metrics.get(WAIT_S, {})
    pressures = [Pressure(used, waits.get(replica, 0.0)) for replica, used in metrics.get(USED, {}).items()]
    count = wanted(
        pressures,
        context.target_num_replicas,
        context.total_queued_requests or 0.0,
        context.capacity_adjusted_min_replicas,
        context.capacity_adjusted_max_replicas,
    )
    return count, {}
