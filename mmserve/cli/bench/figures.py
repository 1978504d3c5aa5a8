"""Figures of one run, named and defined as vLLM's benchmark does.

TTFT: from the sending of a request to its first text. TPOT: (end - TTFT) / (tokens - 1) of a request with two tokens or
more. ITL: every gap between events of every stream. E2EL: to the end of the answer. Times are in ms. Goodput: answers a
second that meet every limit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from mmserve.cli.bench.client import Record

PERCENTILES = (50, 90, 95, 99)
METRICS = ("ttft", "tpot", "itl", "e2el")
SLO_METRICS = ("ttft", "tpot", "e2el")


def figures(
    records: Sequence[Record], wall_s: float, slo_ms: Mapping[str, float], client_cpu_share: float = 0.0
) -> dict[str, Any]:
    """``slo_ms``: limits of a good answer, by SLO_METRICS; without any there is no goodput.
    ``client_cpu_share``: the part of the wall time in which the client's thread computed."""
    good = [record for record in records if not record.error]
    output_tokens = sum(record.output_tokens for record in good)
    prompt_tokens = sum(record.prompt_tokens for record in good)
    found: dict[str, Any] = {
        "num_prompts": len(records),
        "completed": len(good),
        "failed": len(records) - len(good),
        "duration": wall_s,
        "total_input_tokens": prompt_tokens,
        "total_output_tokens": output_tokens,
        "cached_input_tokens": sum(record.cached_tokens for record in good),
        "request_throughput": len(good) / wall_s,
        "output_throughput": output_tokens / wall_s,
        "total_token_throughput": (prompt_tokens + output_tokens) / wall_s,
        "p99_client_late_ms": percentile([1e3 * record.late_s for record in records], 99),
        "client_cpu_share": client_cpu_share,
        "last_start_s": max((record.start_s for record in records), default=0.0),
    }
    if slo_ms:
        met = [all(meets(record, name, limit) for name, limit in slo_ms.items()) for record in good]
        found["request_goodput"] = sum(met) / wall_s
        found["slo_attainment"] = sum(met) / len(records) if records else math.nan
    for metric, values in samples(good).items():
        found |= _distribution(metric, values)
    return found


def samples(good: Sequence[Record]) -> dict[str, list[float]]:
    """Values of each metric in ms. ``good``: records without an error."""
    tpot = [value for record in good if (value := tpot_ms(record)) is not None]
    return {
        "ttft": [1e3 * record.ttft_s for record in good],
        "tpot": tpot,
        "itl": [1e3 * gap for record in good for gap in record.gaps_s],
        "e2el": [1e3 * record.end_s for record in good],
    }


def tpot_ms(record: Record) -> float | None:
    """None for an answer of one token."""
    if record.output_tokens < 2:
        return None
    return 1e3 * (record.end_s - record.ttft_s) / (record.output_tokens - 1)


def meets(record: Record, metric: str, limit_ms: float) -> bool:
    value = {"ttft": 1e3 * record.ttft_s, "tpot": tpot_ms(record) or 0.0, "e2el": 1e3 * record.end_s}[metric]
    return value <= limit_ms


def percentile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between the nearest ranks; nan for no values."""
    if not values:
        return math.nan
    ordered, place = sorted(values), (len(values) - 1) * q / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median_run(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Median of each figure over repeats."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def _distribution(metric: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"mean_{metric}_ms": statistics.fmean(values) if values else math.nan,
        f"std_{metric}_ms": statistics.pstdev(values) if values else math.nan,
        **{f"p{q}_{metric}_ms": percentile(values, q) for q in PERCENTILES},
    }
