"""The table of all metrics: name, type, labels, help. The metrics server drops samples of other names.

Names follow vLLM's, with the prefix ``mmserve:``. Counters get the suffix ``_total`` when rendered.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def num_values(metric: Metric) -> int:
    """Numbers that a series keeps: one, or for a histogram the count of each bucket, of those beyond, and the sum."""
    return len(metric.buckets) + 2 if metric.kind == "histogram" else 1


SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
FAST = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
LAG = (0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0)
COUNT = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


def _seconds(help: str, *labels: str) -> Metric:
    return Metric("histogram", help, labels, SECONDS)


def _stage(help: str, *labels: str) -> Metric:
    return Metric("histogram", help, labels, FAST)


METRICS: dict[str, Metric] = {
    # requests, measured in the HTTP worker
    "http_requests": Metric("counter", "HTTP requests answered", ("route", "status")),
    "http_requests_by_key": Metric("counter", "HTTP requests answered, by name of API key", ("key", "status")),
    "http_connections": Metric("gauge", "Open connections of clients"),
    "http_connections_unread": Metric("gauge", "Open connections whose client has not yet read all bytes sent to it"),
    "http_unread_bytes": Metric("gauge", "Bytes of answers held in HTTP workers until clients read them"),
    "http_connections_closed": Metric("counter", "Connections ended by a limit", ("reason",)),
    "request_success": Metric("counter", "Sequences finished", ("finished_reason",)),
    "requests_aborted": Metric("counter", "Requests whose client disconnected"),
    "requests_timed_out": Metric("counter", "Requests ended by --request-timeout or by their own timeout"),
    "otlp_traces_dropped": Metric("counter", "Traces that were not sent to --otlp-traces-endpoint", ("reason",)),
    "admission_rejections": Metric("counter", "Requests refused before any work", ("reason",)),
    "requests_resent": Metric("counter", "Requests submitted to the engine again after a restart or a lost image"),
    "num_requests_in_flight": Metric("gauge", "Requests between arrival and last byte"),
    "prompt_tokens": Metric("counter", "Prompt tokens, image tokens included"),
    "generation_tokens": Metric("counter", "Tokens generated"),
    "time_to_first_token_seconds": _seconds("From HTTP arrival to the first token", "media"),
    "inter_token_latency_seconds": _seconds("Between tokens of a sequence"),
    "e2e_request_latency_seconds": _seconds("From HTTP arrival to the last byte", "media"),
    "request_prompt_tokens": Metric("histogram", "Prompt tokens of a request", (), TOKENS),
    "request_generation_tokens": Metric("histogram", "Tokens generated for a request", (), TOKENS),
    "request_params_n": Metric("histogram", "n of a request", (), COUNT),
    "request_params_max_tokens": Metric("histogram", "max_tokens of a request", (), TOKENS),
    # media stages; label alloc: the allocation path, v1 or v2
    "mm_items": Metric("counter", "Images by what allocation found", ("state", "alloc")),
    "mm_fetch_seconds": _stage("Reading one request's images: decode base64, fetch, or read file", "alloc"),
    "mm_hash_seconds": _stage("Hashing one request's images and reading their headers", "alloc"),
    "mm_alloc_seconds": _stage("Allocation of one request, waits included", "alloc"),
    "mm_alloc_rpc_seconds": _stage("One allocation RPC", "alloc"),
    "mm_write_seconds": _stage("Writing one request's images into the arena and reporting them", "alloc"),
    "mm_alloc_waiting": Metric("gauge", "Requests waiting for arena space", ("alloc",)),
    "mm_alloc_too_large": Metric("counter", "Requests with images of more than a budget or the arena", ("alloc",)),
    "mm_compare_seconds": _stage("Comparing one request's images with bytes that other requests wrote", "alloc"),
    "mm_hash_collisions": Metric("counter", "Images whose content key was that of a different image", ("alloc",)),
    "mm_copied_bytes": Metric(
        "counter", "Bytes copied into the arena by the host: image data, embedding rows", ("kind", "alloc")
    ),
    "mm_queue_seconds": _seconds("Time a request waits in the visual server before its images are decoded"),
    "mm_decode_seconds": _stage("Decoding and preprocessing one image"),
    "mm_encode_seconds": _stage("One vision tower batch"),
    "mm_encode_batch_size": Metric("histogram", "Images in one vision tower batch", (), COUNT),
    "mm_images_encoded": Metric("counter", "Images encoded"),
    "mm_images_not_encoded": Metric(
        "counter", "Images of sequences that were not encoded, as their KV was in the prefix cache"
    ),
    "mm_images_offloaded": Metric("counter", "Images that encoders on other machines have encoded"),
    "mm_images_failed": Metric("counter", "Images that could not be decoded or encoded"),
    "mm_encoder_requests_waiting": Metric("gauge", "Requests waiting in the visual servers"),
    "mm_decoding": Metric("gauge", "Requests that hold a decode permit: decoding, or waiting for the encoder"),
    "mm_decoding_peak": Metric("gauge", "Peak of mm_decoding"),
    "mm_decode_waiting": Metric("gauge", "Requests waiting for a decode permit"),
    # label budget: body, fetch (HTTP workers), data, embeddings (arena), pixels (visual servers)
    "budget_limit_bytes": Metric("gauge", "Limit of the budget", ("budget",)),
    "budget_used_bytes": Metric("gauge", "Bytes of the budget in use", ("budget",)),
    "budget_peak_bytes": Metric("gauge", "Most bytes of the budget ever in use", ("budget",)),
    # arena and cache server, both allocation paths together
    "mm_cache_queries": Metric("counter", "Images looked up"),
    "mm_cache_hits": Metric("counter", "Images whose embedding was cached"),
    "mm_cache_evictions": Metric("counter", "Extents evicted", ("kind",)),
    "mm_cache_evicted_bytes": Metric("counter", "Arena bytes evicted"),
    "mm_slots": Metric("gauge", "Extents in the arena", ("kind", "state")),
    "mm_slot_bytes": Metric("gauge", "Arena bytes by use", ("kind", "state")),
    "mm_arena_bytes": Metric("gauge", "Size of the arena"),
    "mm_leases": Metric("gauge", "Leases held"),
    "mm_leases_reclaimed": Metric("counter", "Leases released because their owner was killed"),
    "mm_lease_leaks": Metric("counter", "Leases and reservations that a running owner never released: a bug, always 0"),
    # router
    "num_requests_running": Metric("gauge", "Sequences in slots"),
    "num_requests_waiting": Metric("gauge", "Sequences waiting for a slot"),
    "kv_cache_usage_perc": Metric("gauge", "KV blocks held by running sequences, 0 to 1"),
    "kv_blocks": Metric("gauge", "KV blocks", ("state",)),
    "cache_config_info": Metric(
        "gauge", "Always 1; its labels are tokens of a KV block and number of blocks", ("block_size", "num_gpu_blocks")
    ),
    "num_preemptions": Metric("counter", "Sequences whose KV was freed, to be recomputed later"),
    "prefix_cache_queries": Metric("counter", "Prompt tokens looked up in the prefix cache"),
    "prefix_cache_hits": Metric("counter", "Prompt tokens found in the prefix cache"),
    "request_queue_time_seconds": _seconds("From the router's receipt to the first step"),
    "request_prefill_time_seconds": _seconds("From the first step to the first token"),
    "request_decode_time_seconds": _seconds("From the first to the last token"),
    "request_inference_time_seconds": _seconds("From the first step to the last token"),
    "forced_tokens": Metric("counter", "Tokens that the grammars of answers forced and that were not sampled"),
    "draft_tokens": Metric("counter", "Tokens that --speculative proposed, computed with the tokens before them"),
    "draft_seconds": _stage("The draft model's part of one step"),
    "accepted_draft_tokens": Metric("counter", "Proposed tokens that were sampled too, and so saved a step each"),
    "iteration_tokens": Metric("histogram", "Tokens in one step", (), TOKENS),
    "step_seconds": _stage("One step: plan, forward, result; with --overlap-scheduling, from result to result"),
    "schedule_seconds": _stage("Planning one step"),
    # processes
    "event_loop_lag_seconds": Metric("histogram", "How late the HTTP workers' event loops are", (), LAG),
    "process_restarts": Metric("counter", "Restarts of processes", ("role",)),
}

PREFIX = "mmserve:"
