"""When a sequence started, gave its first token and ended, as metrics. The clock is passed in."""

from __future__ import annotations

from collections.abc import Callable

from mmserve.router.scheduler.sequence import Sequence

Clock = Callable[[], float]
"""Seconds on a clock that never goes back."""
Record = Callable[[str, float], None]
"""One observation of a metric in metrics.names."""


class RequestTimings:
    """Stage times of all sequences; each stage is counted once a sequence, preempted or not."""

    def __init__(self, now: Clock, record: Record) -> None:
        self._now = now
        self._record = record

    def started(self, sequence: Sequence) -> None:
        """The sequence enters a slot."""
        if sequence.started_s is not None:
            return
        sequence.started_s = self._now()
        self._record("request_queue_time_seconds", sequence.started_s - sequence.received_s)
        self._record("prefix_cache_queries", sequence.num_prompt_tokens)
        self._record("prefix_cache_hits", sequence.num_cached_tokens)

    def sampled(self, sequence: Sequence) -> None:
        """A token has come."""
        if sequence.first_token_s is None and sequence.started_s is not None:
            sequence.first_token_s = self._now()
            self._record("request_prefill_time_seconds", sequence.first_token_s - sequence.started_s)

    def ended(self, sequence: Sequence) -> None:
        """The sequence has its last token."""
        if sequence.first_token_s is None or sequence.started_s is None:
            return
        now = self._now()
        self._record("request_decode_time_seconds", now - sequence.first_token_s)
        self._record("request_inference_time_seconds", now - sequence.started_s)
