"""What the results of steps mean for their sequences: tokens and replies, failures, and when what they occupy is free.

Pure: the clock is passed in, no I/O.
"""

from __future__ import annotations

from collections import deque

from mmserve.messages.logprobs import row_nbytes
from mmserve.messages.reply import FinishReason
from mmserve.messages.step import SlotFailure, StepPlan, StepResult
from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.scheduler.admission import Admission
from mmserve.router.scheduler.image_requests import ImageRequests
from mmserve.router.scheduler.queues import RunningSet, WaitingQueue
from mmserve.router.scheduler.requests import OutputBuffer, Record, RequestTimings
from mmserve.router.scheduler.sequence import Sequence, SequenceStatus
from mmserve.router.scheduler.step_builder import StepBuilder


class StepResults:
    """Owns the steps in flight, and the sequences that end while one of them is computed.

    A sequence that a plan in flight computes keeps its slot and blocks until the result is in, even if it has finished,
    failed or must restart meanwhile. So a slot in a result belongs to the sequence of the plan, no step writes into
    blocks of another sequence, and cached blocks without references are computed.
    """

    def __init__(
        self,
        kv: KvCacheManager,
        running: RunningSet,
        waiting: WaitingQueue,
        admission: Admission,
        timings: RequestTimings,
        replies: OutputBuffer,
        images: ImageRequests,
        record: Record,
    ) -> None:
        self._kv = kv
        self._running = running
        self._waiting = waiting
        self._admission = admission
        self._timings = timings
        self._replies = replies
        self._images = images
        self._record = record
        self.in_flight: deque[StepBuilder] = deque()
        """Steps whose plans were made and whose results were not applied, oldest first."""
        self._retained: list[Sequence] = []
        """Sequences that no longer run, but that a plan in flight computes; newer ones first."""

    def apply(self, plan: StepPlan, result: StepResult) -> StepBuilder:
        """Takes in the result of ``plan``, the oldest one in flight. Returns its step."""
        done = self.in_flight.popleft()
        sampled, forced, logprobs = dict(result.tokens), dict(result.forced), dict(result.logprobs)
        if failures := done.failures(result, sampled):
            self._fail_slots(failures, done)
        if result.prompt_logprobs:
            self._add_prompt_logprobs(done, plan, result)
        running, none = SequenceStatus.RUNNING, ()
        deferred: list[Sequence] = []
        for sequence, step in zip(done.sequences, plan.steps, strict=True):
            if step.sample and sequence.status is running:
                slot = step.slot
                if slot not in sampled:
                    deferred.append(sequence)
                    continue
                end = step.start + step.num_tokens
                following = forced.get(slot, none) if forced else none
                self._append(sequence, end, sampled[slot], following, logprobs.get(slot, none) if logprobs else none)
        for sequence in reversed(deferred):
            self._requeue(sequence)  # what it has computed is in the prefix cache
        if done.num_prompt_chunks:
            self._leave_at_images(done)
        for sequence in done.prompt_ends:
            if sequence.status is running:
                self._end_prompt(sequence, dict(result.embeddings).get(sequence.slot, b""))
        retained, self._retained = self._retained, []
        for sequence in retained:
            self._release(sequence)
        return done

    def _leave_at_images(self, done: StepBuilder) -> None:
        """Sequences that wait for an image now leave their slots."""
        for sequence in reversed(done.sequences):
            waits = sequence.status is SequenceStatus.RUNNING and sequence.has_reached_image
            if waits and not any(sequence in step.sequences for step in self.in_flight):
                self._requeue(sequence)

    def _fail_slots(self, failures: dict[int, SlotFailure], done: StepBuilder) -> None:
        """Ends the sequences that could not be computed.

        Sequences whose prefix hit includes a block that a failed slot should have filled, in this step or in one in
        flight, start again from the waiting queue.
        """
        for step in (done, *self.in_flight):
            for slot in failures:
                if slot in step.cached_nodes:
                    self._kv.invalidate(step.cached_nodes[slot])
        for sequence in reversed(self._running.sequences[:]):
            assert sequence.block_table is not None
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # aborted since the plan was made
            if self._kv.uses_invalid_block(sequence.block_table):
                self._requeue(sequence)
            elif sequence.slot in failures:
                self._fail(sequence, failures[sequence.slot])
        for sequence in self._retained:
            assert sequence.block_table is not None
            if sequence.slot in failures:
                self._kv.discard_computed(sequence.block_table)

    def _append(
        self,
        sequence: Sequence,
        position: int,
        token_ids: tuple[int, ...],
        forced: tuple[int, ...],
        logprobs: tuple[bytes, ...],
    ) -> None:
        """Adds the tokens of a result, the first at ``position``, and replies with those that no earlier result has
        brought. Those after the end of the sequence are dropped."""
        assert sequence.block_table is not None
        tokens, block_tokens = sequence.tokens, self._kv.block_tokens
        num_before = len(tokens)
        finish = sequence.append(position, token_ids, forced)
        if (position - 1) % block_tokens + len(token_ids) >= block_tokens:  # a block is full
            num_computed = min(position + len(token_ids), len(tokens)) - 1
            self._kv.cache_full_blocks(sequence.block_table, tokens, num_computed)
        if forced or num_before > position:
            self._record("forced_tokens", max(0, len(tokens) - max(num_before, position + len(token_ids))))
            token_ids = tuple(tokens[num_before:])
            if not token_ids:
                return
        if finish is None and not logprobs and sequence.first_token_s is not None:  # the common case
            self._replies.add_token_ids(sequence.request, token_ids)
            return
        num_added = len(tokens) - num_before
        if num_added < len(token_ids):
            token_ids, logprobs = token_ids[:num_added], logprobs[:num_added]
        num_cached = 0
        not_encoded: tuple[int, ...] = ()
        if sequence.first_token_s is None:
            self._timings.sampled(sequence)
            num_cached, not_encoded = sequence.num_cached_tokens, tuple(sequence.not_encoded)
        stage_times = self._timings.ended(sequence) if finish else {}
        self._replies.add_tokens(sequence.request, token_ids, finish, logprobs, num_cached, stage_times, not_encoded)
        if finish:
            self._admission.kv_demand.observe_output(sequence)
            self.finish(sequence)

    def _add_prompt_logprobs(self, done: StepBuilder, plan: StepPlan, result: StepResult) -> None:
        by_slot = {step.slot: sequence for sequence, step in zip(done.sequences, plan.steps, strict=True)}
        for slot, rows in result.prompt_logprobs:
            sequence = by_slot[slot]
            if sequence.status is SequenceStatus.RUNNING:
                sequence.num_prompt_logprobs += len(rows) // row_nbytes(sequence.request.sampling.prompt_logprobs or 0)
                self._replies.add_prompt_logprobs(sequence.request, rows)

    def _end_prompt(self, sequence: Sequence, embedding: bytes) -> None:
        """The prompt of a sequence that ends with it is computed."""
        if sequence.request.pooling and not embedding:
            self._fail(sequence, SlotFailure(slot=sequence.slot, media_lost=False, message="no embedding came back"))
            return
        self._timings.sampled(sequence)
        stage_times, num_cached = self._timings.ended(sequence), sequence.num_cached_tokens
        self._replies.add_prompt_end(sequence.request, embedding, num_cached, stage_times)
        self.finish(sequence)

    def _fail(self, sequence: Sequence, failure: SlotFailure) -> None:
        """Ends a sequence whose chunk could not be computed. None of its blocks stays in the cache."""
        assert sequence.block_table is not None
        self._kv.discard_computed(sequence.block_table)
        self.finish(sequence)
        self._replies.add_finish(sequence.request, _finish_of(failure), failure.message)

    def finish(self, sequence: Sequence) -> None:
        """Ends a waiting or running sequence and releases what it occupies."""
        if sequence.block_table is None:
            self._waiting.remove(sequence)
        sequence.finish()
        self._images.end(sequence)
        self._release(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        """Sends a running sequence back to the waiting queue, to be computed again."""
        sequence.requeue()
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Frees slot and blocks of a sequence that no longer runs, as soon as no plan in flight computes it."""
        if sequence.block_table is None:
            return
        if any(sequence in step.sequences for step in self.in_flight):
            self._retained.append(sequence)
        else:
            self._admission.release(sequence)


def _finish_of(failure: SlotFailure) -> FinishReason:
    if failure.grammar:
        return "grammar_error"
    if failure.no_token:
        return "no_token_allowed"
    return "media_lost" if failure.media_lost else "error"
