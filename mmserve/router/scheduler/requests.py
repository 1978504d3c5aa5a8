"""Bookkeeping of requests beside their sequences: current attempts, replies to send, stage times. Pure: the clock is
passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from mmserve.messages.reply import FinishReason, SequenceStages, TokenReply
from mmserve.messages.request import AbortReason, AbortRequest, GenerateRequest, RequestMessage, WorkerDied
from mmserve.router.scheduler.sequence import Sequence

Clock = Callable[[], float]
"""Seconds on a monotonic clock."""
Record = Callable[[str, float], None]
"""Records one observation of a metric (monitoring/metrics/names)."""

_FINISH_OF_ABORT: dict[AbortReason, FinishReason] = {
    "client": "abort",
    "media_error": "media_error",
    "media_lost": "media_lost",
    "internal_error": "error",
    "queue_full": "overloaded",
    "queue_timeout": "abort",
    "shortage": "abort",
}


class RequestRegistry:
    """The current attempt of each request id. Makes receiving a message twice the same as receiving it once.

    Remembers the last ``max_ended`` ids that have ended.
    """

    def __init__(self, max_ended: int = 16384) -> None:
        self._max_ended = max_ended
        self._live: dict[str, Sequence] = {}
        self._ended: OrderedDict[str, int] = OrderedDict()
        """Id -> newest attempt, in the order of ending."""
        self._died: dict[int, WorkerDied] = {}
        """HTTP worker -> its last death."""

    def live(self, request_id: str) -> Sequence | None:
        """The waiting or running sequence of this id."""
        return self._live.get(request_id)

    def is_orphan(self, message: RequestMessage) -> bool:
        """True for a request whose HTTP worker has died while it was on its way."""
        died = self._died.get(message.reply_to)
        return died is not None and isinstance(message, GenerateRequest) and died.concerns(message)

    def has_seen(self, request_id: str, attempt: int) -> bool:
        """True if this attempt or a newer one was started or ended before."""
        live = self._live.get(request_id)
        newest = self._ended.get(request_id, -1) if live is None else live.request.attempt
        return attempt <= newest

    def worker_died(self, died: WorkerDied) -> list[Sequence]:
        """End the requests of an HTTP worker, also those that are still on their way. Returns their sequences, which
        wait or run."""
        self._died[died.worker] = died
        orphans = [sequence for sequence in self._live.values() if died.concerns(sequence.request)]
        for sequence in orphans:
            self.end(sequence.request.id, sequence.request.attempt)
        return orphans

    def add(self, sequence: Sequence) -> None:
        """Makes the sequence its id's current attempt."""
        self._live[sequence.request.id] = sequence

    def end(self, request_id: str, attempt: int) -> None:
        """The attempt has its terminal reply."""
        self._live.pop(request_id, None)
        self._ended[request_id] = attempt
        self._ended.move_to_end(request_id)
        if len(self._ended) > self._max_ended:
            self._ended.popitem(last=False)


class OutputBuffer:
    """Replies to send, in order. A terminal reply ends its attempt in the registry."""

    def __init__(self, registry: RequestRegistry) -> None:
        self._registry = registry
        self._replies: list[tuple[int, TokenReply | SequenceStages]] = []

    def take(self) -> list[tuple[int, TokenReply | SequenceStages]]:
        """(HTTP worker, reply) since the last call."""
        replies, self._replies = self._replies, []
        return replies

    def add_token_ids(self, request: GenerateRequest, token_ids: tuple[int, ...]) -> None:
        """New tokens of a request that goes on and did not ask for log-probabilities; not its first ones."""
        self._replies.append(
            (request.reply_to, TokenReply(id=request.id, attempt=request.attempt, token_ids=token_ids))
        )

    def add_tokens(
        self,
        request: GenerateRequest,
        token_ids: tuple[int, ...],
        finish: FinishReason | None,
        logprobs: tuple[bytes, ...],
        num_cached_tokens: int,
        stage_times: dict[str, float],
        not_encoded: tuple[int, ...] = (),
    ) -> None:
        """New tokens of the request; with ``finish`` its last ones, and then with the times of its stages."""
        reply = TokenReply(
            id=request.id,
            attempt=request.attempt,
            token_ids=token_ids,
            logprobs=logprobs,
            finish=finish,
            num_cached_tokens=num_cached_tokens,
            stage_times=stage_times,
            not_encoded=not_encoded,
        )
        self._add(request, reply)

    def add_prompt_logprobs(self, request: GenerateRequest, rows: bytes) -> None:
        """The next rows of the log-probabilities of the request's prompt."""
        self._add(request, TokenReply(id=request.id, attempt=request.attempt, prompt_logprobs=rows))

    def add_prompt_end(
        self, request: GenerateRequest, embedding: bytes, num_cached_tokens: int, stage_times: dict[str, float]
    ) -> None:
        """The terminal reply to a request that ends with its prompt. ``embedding``: empty if it has not asked."""
        reply = TokenReply(
            id=request.id,
            attempt=request.attempt,
            embedding=embedding,
            finish="length",
            num_cached_tokens=num_cached_tokens,
            stage_times=stage_times,
        )
        self._add(request, reply)

    def add_stages(self, worker: int, stages: SequenceStages) -> None:
        """The answer to a question of an HTTP worker."""
        self._replies.append((worker, stages))

    def add_abort(self, message: AbortRequest) -> None:
        """The terminal reply to an aborted request."""
        self._add(
            message,
            TokenReply(
                id=message.id,
                attempt=message.attempt,
                finish=_FINISH_OF_ABORT[message.reason],
                message=message.message,
                retry_after_s=message.retry_after_s,
                media_index=message.media_index,
            ),
        )

    def add_finish(self, message: RequestMessage, finish: FinishReason, text: str = "") -> None:
        """The terminal reply to the message's id and attempt, without a token. ``text``: the reason in words."""
        self._add(message, TokenReply(id=message.id, attempt=message.attempt, finish=finish, message=text))

    def _add(self, message: RequestMessage, reply: TokenReply) -> None:
        self._replies.append((message.reply_to, reply))
        if reply.finish:
            self._registry.end(reply.id, reply.attempt)


class RequestTimings:
    """Records the stage times of requests. Each stage counts once a request, also after preemption."""

    def __init__(self, now: Clock, record: Record) -> None:
        self._now = now
        self._record = record

    def encoded(self, sequence: Sequence, stage_times: dict[str, float]) -> None:
        """All images that were asked for are encoded. Only now the sequence begins to wait for a slot."""
        sequence.stage_times = stage_times
        if sequence.started_s is None:
            sequence.received_s = self._now()

    def started(self, sequence: Sequence) -> None:
        """The sequence has got a slot, to compute all of its prompt."""
        if sequence.started_s is not None:
            return
        sequence.started_s = self._now()
        self._record("request_queue_time_seconds", sequence.started_s - sequence.received_s)
        self._record("prefix_cache_queries", sequence.num_prompt_tokens)
        self._record("prefix_cache_hits", sequence.num_cached_tokens)

    def sampled(self, sequence: Sequence) -> None:
        """The sequence has got a token."""
        if sequence.first_token_s is None and sequence.started_s is not None:
            sequence.first_token_s = self._now()
            self._record("request_prefill_time_seconds", sequence.first_token_s - sequence.started_s)
            if sequence.not_encoded:
                self._record("mm_images_not_encoded", len(sequence.not_encoded))

    def ended(self, sequence: Sequence) -> dict[str, float]:
        """The sequence has got its last token. Returns the seconds of all its stages so far."""
        if sequence.first_token_s is None or sequence.started_s is None:
            return sequence.stage_times
        now = self._now()
        self._record("request_decode_time_seconds", now - sequence.first_token_s)
        self._record("request_inference_time_seconds", now - sequence.started_s)
        return {
            **sequence.stage_times,
            "queue": sequence.started_s - sequence.received_s,
            "prefill": sequence.first_token_s - sequence.started_s,
            "decode": now - sequence.first_token_s,
        }
