"""Variables of a Ray that is started here. Ray reads some of them when it is imported, so nothing here imports it."""

from __future__ import annotations

import os
import secrets

_LOCAL = {
    "RAY_worker_niceness": "0",  # Ray's own choice is 15
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
    "RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "2",
}


def set_for_own_ray() -> None:
    """Where nothing else is set. Only who has the token, which stays in this environment, can give Ray commands."""
    for name, value in {**_LOCAL, "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
        os.environ.setdefault(name, value)
