"""Which metrics the server's state is made of, and how. Pure."""

from __future__ import annotations

from mmserve.messages.server_state import AllocArm, HistoryPoint, LastHour, Latency, Load
from mmserve.monitoring.metrics.distribution import latency_of
from mmserve.monitoring.metrics.history import Column, Span, Sums
from mmserve.monitoring.metrics.names import METRICS

ARMS = ("v1", "v2")
STAGES = {
    "visual_queue": "mm_queue_seconds",
    "image_decode": "mm_decode_seconds",
    "encode": "mm_encode_seconds",
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "decode": "request_decode_time_seconds",
}
"""Stages of the last hour -> histogram, in the order of a request."""
ARM_STAGES = {
    "fetch": "mm_fetch_seconds",
    "hash": "mm_hash_seconds",
    "alloc": "mm_alloc_seconds",
    "write": "mm_write_seconds",
}
"""The same for one path of allocation."""
_PROMPT, _GENERATED = Column("prompt_tokens"), Column("generation_tokens")
_TTFT, _ITL = Column("time_to_first_token_seconds"), Column("inter_token_latency_seconds")
_E2E = Column("e2e_request_latency_seconds")


def _of_arm(metric: str, arm: str, *labels: str) -> Column:
    return Column(metric, frozenset((arm, *labels)))


COLUMNS = (
    *(_PROMPT, _GENERATED, _TTFT, _ITL, _E2E),
    *map(Column, STAGES.values()),
    *(_of_arm(metric, arm) for arm in ARMS for metric in (*ARM_STAGES.values(), "mm_items")),
    *(_of_arm("mm_items", arm, "hit") for arm in ARMS),
)
"""What the history keeps."""


def point_of(span: Span) -> HistoryPoint:
    """One point of the charts."""
    ttft, itl = _latency(span, _TTFT), _latency(span, _ITL)
    return HistoryPoint(
        time_s=span.time_s,
        seconds=round(span.seconds, 3),
        prompt_tokens=_count(span, _PROMPT),
        generation_tokens=_count(span, _GENERATED),
        requests=ttft.count,
        ttft_p50_s=ttft.p50_s,
        ttft_p95_s=ttft.p95_s,
        ttft_p99_s=ttft.p99_s,
        itl_p50_s=itl.p50_s,
        itl_p95_s=itl.p95_s,
        itl_p99_s=itl.p99_s,
    )


def last_hour_of(span: Span, sums: Sums) -> LastHour:
    """``sums``: the values now, for the gauges."""
    return LastHour(
        seconds=round(span.seconds, 3),
        prompt_tokens=_count(span, _PROMPT),
        generation_tokens=_count(span, _GENERATED),
        ttft=_latency(span, _TTFT),
        itl=_latency(span, _ITL),
        e2e=_latency(span, _E2E),
        stages={stage: _latency(span, Column(metric)) for stage, metric in STAGES.items()},
        arms={arm: _arm(span, sums, arm) for arm in ARMS},
    )


def load_of(sums: Sums, slots: int) -> Load:
    """``slots``: sequences that may run at once."""

    def total(metric: str, *labels: str) -> int:
        found = (values[0] for key, values in sums.get(metric, {}).items() if set(labels).issubset(key))
        return int(sum(found))

    return Load(
        requests_in_flight=total("num_requests_in_flight"),
        sequences_running=total("num_requests_running"),
        slots=slots,
        sequences_waiting=total("num_requests_waiting"),
        kv_blocks_held=total("kv_blocks", "held"),
        kv_blocks_cached=total("kv_blocks", "cached"),
        kv_blocks_free=total("kv_blocks", "free"),
        preemptions=total("num_preemptions"),
        images_waiting=total("mm_encoder_requests_waiting"),
        images_decoding=total("mm_decoding"),
        prompt_tokens=total("prompt_tokens"),
        generation_tokens=total("generation_tokens"),
        prefix_hit_tokens=total("prefix_cache_hits"),
        prefix_query_tokens=total("prefix_cache_queries"),
    )


def _arm(span: Span, sums: Sums, arm: str) -> AllocArm:
    waiting = sums.get("mm_alloc_waiting", {}).get((arm,), (0.0,))
    return AllocArm(
        requests=_latency(span, _of_arm("mm_alloc_seconds", arm)).count,
        images=_count(span, _of_arm("mm_items", arm)),
        cached_images=_count(span, _of_arm("mm_items", arm, "hit")),
        waiting=int(waiting[0]),
        stages={stage: _latency(span, _of_arm(metric, arm)) for stage, metric in ARM_STAGES.items()},
    )


def _count(span: Span, column: Column) -> int:
    return int(span.values[column][0])


def _latency(span: Span, column: Column) -> Latency:
    return latency_of(span.values[column], METRICS[column.metric].buckets)
