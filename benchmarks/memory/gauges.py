"""Reads the gauges of /metrics that count something held for a request."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

HELD = (
    "mmserve:num_requests_in_flight",
    "mmserve:mm_leases",
    "mmserve:mm_decoding",
    "mmserve:mm_encoder_requests_waiting",
    "mmserve:mm_alloc_waiting",
    "mmserve:num_requests_running",
    "mmserve:num_requests_waiting",
    "mmserve:budget_used_bytes",
)
"""All are 0 without live requests. The budget of embeddings counts only those that requests hold; the rest of the arena
is a cache."""
LEAKS = "mmserve:mm_lease_leaks_total"
PEAKS = "mmserve:budget_peak_bytes"
_TIMEOUT_S = 30.0
_INTERVAL_S = 0.5

Samples = Mapping[str, float]
"""``name{label="value"}`` -> value, labels in the server's order."""


def scrape(url: str) -> dict[str, float]:
    """All samples now."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=_TIMEOUT_S) as answer:
        text = answer.read().decode()
    return {
        sample.name + _labels(sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}" if labels else ""


def held_resources(samples: Samples) -> dict[str, float]:
    """The samples of HELD. Metrics that this server does not have are left out."""
    return {name: value for name, value in samples.items() if name.partition("{")[0] in HELD}


def until_released(url: str, timeout_s: float) -> tuple[dict[str, float], float]:
    """Scrape until all of HELD are 0 or the time is over. Returns their last values, and the seconds waited."""
    started_s = time.monotonic()
    while True:
        found, waited_s = held_resources(scrape(url)), time.monotonic() - started_s
        if not any(found.values()) or waited_s > timeout_s:
            return found, waited_s
        time.sleep(_INTERVAL_S)
