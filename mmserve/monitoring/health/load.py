"""How loaded the server is: a few figures from the metrics server's page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from mmserve.ipc.status_client import read_page

FIGURES: Mapping[str, str] = {
    "requests_in_flight": "num_requests_in_flight",
    "sequences_running": "num_requests_running",
    "sequences_waiting": "num_requests_waiting",
    "kv_cache_usage": "kv_cache_usage_perc",
    "images_waiting": "mm_encoder_requests_waiting",
    "images_decoding": "mm_decoding",
    "arena_bytes": "mm_arena_bytes",
    "arena_used_bytes": "mm_slot_bytes",
    "arena_slots": "mm_slots",
    "leases": "mm_leases",
    "prompt_tokens": "prompt_tokens_total",
    "generation_tokens": "generation_tokens_total",
}
"""Figure -> metric, summed over its labels."""
_SAMPLE = re.compile(r"^mmserve:(\w+)(?:\{.*\})? (\S+)$", re.MULTILINE)
_TIMEOUT_S = 2.0


def figures_of(page: str) -> dict[str, float]:
    """The figures in a page of the Prometheus text format. A metric that has no sample yet is 0."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, value in _SAMPLE.findall(page):
        sums[name] += float(value)
    return {figure: sums[metric] for figure, metric in FIGURES.items()}


def read_load(metrics_socket: Path) -> dict[str, float] | None:
    """The figures now; None if the metrics server does not answer."""
    page = read_page(metrics_socket, "/metrics", _TIMEOUT_S)
    return None if page is None else figures_of(page.decode())
