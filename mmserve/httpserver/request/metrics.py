"""Metrics of one request; times are measured from its arrival at the HTTP worker."""

from __future__ import annotations

import time

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.monitoring.metrics.client import MetricsClient


class ChoiceMetrics:
    """Latencies and token counts of one choice; call ``record`` with each delta when it is made."""

    def __init__(self, metrics: MetricsClient, call: GenerateCall) -> None:
        self._metrics = metrics
        self._arrival_s = call.arrival_s
        self._media = "image" if call.media else "text"
        self._last_token_s: float | None = None
        self._num_tokens = 0

    def record(self, delta: AnswerDelta) -> None:
        now = time.monotonic()
        if delta.num_tokens:
            self._record_tokens(now, delta.num_tokens)
        if delta.finish is not None:
            self._metrics.add("request_success", 1, delta.finish)
            self._metrics.add("request_generation_tokens", self._num_tokens)
            self._metrics.add("e2e_request_latency_seconds", now - self._arrival_s, self._media)

    def _record_tokens(self, now: float, count: int) -> None:
        if self._last_token_s is None:
            self._metrics.add("time_to_first_token_seconds", now - self._arrival_s, self._media)
        else:
            self._metrics.add("inter_token_latency_seconds", (now - self._last_token_s) / count)
        self._metrics.add("generation_tokens", count)
        self._last_token_s = now
        self._num_tokens += count


def count_request(metrics: MetricsClient, call: GenerateCall, prompt_tokens: int, max_tokens: int) -> None:
    """Count a request whose prompt is built."""
    metrics.add("prompt_tokens", prompt_tokens)
    metrics.add("request_prompt_tokens", prompt_tokens)
    metrics.add("request_params_n", call.n)
    metrics.add("request_params_max_tokens", max_tokens)
