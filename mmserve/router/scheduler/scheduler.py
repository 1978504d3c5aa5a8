"""Decides what each step computes, and turns the results into replies: continuous batching over all sequences.

The caller calls receive(message) any number of times, then schedule() -> plan and apply(plan, result), then
take_replies(). Several plans may be in flight (made, but not applied); they are computed and applied in order.
Pure: the clock is passed in, no I/O.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from mmserve.messages.logprobs import row_nbytes
from mmserve.messages.reply import FinishReason, TokenReply
from mmserve.messages.request import AbortRequest, EngineInbound, GenerateRequest, WorkerDied
from mmserve.messages.step import SlotFailure, StepPlan, StepResult
from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.scheduler.admission import Admission
from mmserve.router.scheduler.queues import RunningSet, WaitingQueue
from mmserve.router.scheduler.requests import Clock, OutputBuffer, Record, RequestRegistry, RequestTimings
from mmserve.router.scheduler.sequence import Sequence, SequenceStatus
from mmserve.router.scheduler.step_builder import StepBuilder
from mmserve.router.scheduler.step_planner import StepPlanner


@dataclass(frozen=True)
class SchedulerConfig:
    """``max_num_seqs``: slots. ``max_num_batched_tokens``: of one step. ``max_model_len``: prompt plus output.
    ``max_step_s``: see StepTimeModel."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    max_step_s: float = 0.0


class Scheduler:
    """Owns the state of every sequence and of the KV cache.

    Every request finishes: the oldest running sequence is never preempted and fits the cache alone; a sequence starts
    only if the step has a token left for it, so each step has a token for every decoding sequence and one for the
    oldest prompt; no waiting sequence is bypassed for ever.

    A sequence that a plan in flight computes keeps its slot and blocks until the result is in, even if it has finished,
    failed or must restart meanwhile. So a slot in a result belongs to the sequence of the plan, no step writes into
    blocks of another sequence, and cached blocks without references are computed.
    """

    def __init__(
        self, config: SchedulerConfig, *, num_blocks: int, block_tokens: int, now: Clock, record: Record
    ) -> None:
        self.kv = KvCacheManager(num_blocks, block_tokens)
        # A sequence that fills the cache alone has reached the end of its context.
        self._context_tokens = min(config.max_model_len, num_blocks * block_tokens)
        self._block_tokens = block_tokens
        self._running = RunningSet(config.max_num_seqs)
        self._waiting = WaitingQueue()
        self._admission = Admission(self._waiting, self._running, self.kv)
        self._requests = RequestRegistry()
        self._replies = OutputBuffer(self._requests)
        self._timings = RequestTimings(now, record)
        self._planner = StepPlanner(
            self.kv,
            self._running,
            self._waiting,
            self._admission,
            self._timings,
            record,
            max_step_tokens=config.max_num_batched_tokens,
            max_step_s=config.max_step_s,
        )
        self._now = now
        self._in_flight: deque[StepBuilder] = deque()
        self._retained: list[Sequence] = []
        """Sequences that no longer run, but that a plan in flight computes; newer ones first."""
        self._num_received = 0
        self._num_plans = 0

    @property
    def num_running(self) -> int:
        return len(self._running.sequences)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """True if nothing is in flight and ``schedule`` would return None."""
        return not (self._running.sequences or self._waiting or self._running.has_freed_slots or self._in_flight)

    def take_replies(self) -> list[tuple[int, TokenReply]]:
        """(HTTP worker, reply) since the last call, in order."""
        return self._replies.take()

    def take_starts(self) -> list[tuple[int, TokenReply]]:
        """(HTTP worker, reply) for the starts (``suspects``) in plans made since the last call; send them first."""
        return self._planner.suspects.take_starts()

    # ---- messages

    def receive(self, message: EngineInbound) -> None:
        """Accepts a request, an abort, or the death of an HTTP worker, which ends its requests without replies.

        Ignores repeated messages and those that a newer attempt has replaced."""
        if isinstance(message, WorkerDied):
            for orphan in self._requests.worker_died(message):
                self._finish(orphan)
            return
        live = self._requests.live(message.id)
        is_current = live is not None and live.request.attempt == message.attempt
        if isinstance(message, AbortRequest) and live and is_current:
            self._finish(live)
        elif self._requests.has_seen(message.id, message.attempt) or self._requests.is_orphan(message):
            return
        elif live:
            self._finish(live)
        if isinstance(message, AbortRequest):
            self._replies.add_abort(message)
        else:
            self._add_request(message)

    def _add_request(self, request: GenerateRequest) -> None:
        try:
            sequence = Sequence(request, self._num_received, self._now(), self._context_tokens)
        except ValueError as error:
            self._replies.add_finish(request, "error", f"malformed request: {error}")
            return
        self._num_received += 1
        if sequence.num_prompt_tokens + (not sequence.prompt_only) > self._context_tokens:
            too_long = f"a prompt of {sequence.num_prompt_tokens} tokens leaves no room in {self._context_tokens}"
            self._replies.add_finish(request, "error", f"{too_long} (context length or KV cache)")
        elif sequence.num_output_tokens and (finish := sequence.finish_reason()):
            self._replies.add_finish(request, finish)
        else:
            self._requests.add(sequence)
            self._waiting.push(sequence)

    def observe_chunk(self, num_tokens: int, seconds: float) -> None:
        """The ranks have computed a step with a prompt of so many tokens, before the first plan. 0 seconds: unknown."""
        self._planner.observe_chunk(num_tokens, seconds)

    # ---- planning

    def schedule(self) -> StepPlan | None:
        """Plans the next step. None: nothing to send, or not before the next result.

        The cost does not depend on how many sequences wait.
        """
        step = self._planner.plan(may_preempt=not self._in_flight)
        if step is None or not (step.steps or self._running.has_freed_slots):
            return None
        self._in_flight.append(step)
        self._num_plans += 1
        return step.build(self._num_plans, self._running.take_freed_slots())

    # ---- results

    def apply(self, plan: StepPlan, result: StepResult) -> None:
        """Takes in the result of ``plan``, the oldest one in flight."""
        done = self._in_flight.popleft()
        self._planner.observe(done, result)
        sampled, logprobs = dict(result.tokens), dict(result.logprobs)
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
                self._append(sequence, sampled[slot], logprobs.get(slot, none) if logprobs else none)
        for sequence in reversed(deferred):
            self._requeue(sequence)  # what it has computed is in the prefix cache
        for sequence in done.prompt_ends:
            if sequence.status is running:
                self._end_prompt(sequence, dict(result.embeddings).get(sequence.slot, b""))
        retained, self._retained = self._retained, []
        for sequence in retained:
            self._release(sequence)

    def _fail_slots(self, failures: dict[int, SlotFailure], done: StepBuilder) -> None:
        """Ends the sequences that could not be computed.

        Sequences whose prefix hit includes a block that a failed slot should have filled, in this step or in one in
        flight, start again from the waiting queue.
        """
        for step in (done, *self._in_flight):
            for slot in failures:
                if slot in step.cached_nodes:
                    self.kv.invalidate(step.cached_nodes[slot])
        for sequence in reversed(self._running.sequences[:]):
            assert sequence.block_table is not None
            if sequence.status is not SequenceStatus.RUNNING:
                continue  # aborted since the plan was made
            if self.kv.uses_invalid_block(sequence.block_table):
                self._requeue(sequence)
            elif sequence.slot in failures:
                self._fail(sequence, failures[sequence.slot])
        for sequence in self._retained:
            assert sequence.block_table is not None
            if sequence.slot in failures:
                self.kv.discard_computed(sequence.block_table)

    def _append(self, sequence: Sequence, token_ids: tuple[int, ...], logprobs: tuple[bytes, ...]) -> None:
        """Adds the tokens of a result and replies with them; those after the end of the sequence are dropped."""
        assert sequence.block_table is not None
        tokens = sequence.tokens
        num_before = len(tokens)
        finish = sequence.append(token_ids)
        num_added = len(tokens) - num_before
        if (num_before - 1) % self._block_tokens + num_added >= self._block_tokens:  # a block is full
            self.kv.cache_full_blocks(sequence.block_table, tokens, num_before + num_added - 1)
        if finish is None and not logprobs and sequence.first_token_s is not None:  # the common case
            self._replies.add_token_ids(sequence.request, token_ids)
            return
        if num_added < len(token_ids):
            token_ids, logprobs = token_ids[:num_added], logprobs[:num_added]
        num_cached = 0
        if sequence.first_token_s is None:
            self._timings.sampled(sequence)
            num_cached = sequence.num_cached_tokens
        stage_times = self._timings.ended(sequence) if finish else {}
        self._replies.add_tokens(sequence.request, token_ids, finish, logprobs, num_cached, stage_times)
        if finish:
            self._admission.kv_demand.observe_output(sequence)
            self._finish(sequence)

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
        self._finish(sequence)

    def _fail(self, sequence: Sequence, failure: SlotFailure) -> None:
        """Ends a sequence whose chunk could not be computed. None of its blocks stays in the cache."""
        assert sequence.block_table is not None
        self.kv.discard_computed(sequence.block_table)
        self._finish(sequence)
        self._replies.add_finish(sequence.request, _finish_of(failure), failure.message)

    # ---- endings

    def _finish(self, sequence: Sequence) -> None:
        """Ends a waiting or running sequence and releases what it occupies."""
        if sequence.block_table is None:
            self._waiting.remove(sequence)
        sequence.finish()
        self._release(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        """Sends a running sequence back to the waiting queue, to be computed again."""
        sequence.requeue()
        self._release(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Frees slot and blocks of a sequence that no longer runs, as soon as no plan in flight computes it."""
        if sequence.block_table is None:
            return
        if any(sequence in step.sequences for step in self._in_flight):
            self._retained.append(sequence)
        else:
            self._admission.release(sequence)


def _finish_of(failure: SlotFailure) -> FinishReason:
    if failure.grammar:
        return "grammar_error"
    return "media_lost" if failure.media_lost else "error"
