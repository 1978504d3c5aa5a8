"""What to compute next, for whom, and who has ended: continuous batching over the sequences of all clients.

receive(message) any number of times, then schedule() -> plan and apply(plan, result), then take_replies().
A plan may be made while others are in flight: made, but not applied. They are computed and applied in order.
Owns every sequence's state. Knows no sockets, no tensors and no clock of its own.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from math import ceil

from mmserve.config.deployment import KV_BLOCK_TOKENS
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import AbortRequest, EngineInbound, GenerateRequest
from mmserve.messages.step import SlotFailure, StepPlan, StepResult
from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.scheduler.admission import Admission
from mmserve.router.scheduler.failures import failures_of
from mmserve.router.scheduler.limits import Limits
from mmserve.router.scheduler.output_buffer import OutputBuffer
from mmserve.router.scheduler.request_registry import RequestRegistry
from mmserve.router.scheduler.running_set import RunningSet
from mmserve.router.scheduler.sequence import Phase, Sequence
from mmserve.router.scheduler.step_budget import StepTimeModel
from mmserve.router.scheduler.step_builder import StepBuilder
from mmserve.router.scheduler.stopping import finish_reason
from mmserve.router.scheduler.timings import Clock, Record, RequestTimings
from mmserve.router.scheduler.waiting_queue import WaitingQueue

_BESIDE_TEXT = 2 / 3
"""What prompts with pictures may take of the room for prompts: the rest lets short ones pass, and steps end sooner."""


class Scheduler:
    """Everything finishes, for three reasons. The oldest running sequence is never preempted and fits the cache
    alone. A sequence enters only when the step has a token left for it, so there are never more running ones than
    tokens in a step, and each step has one for every decoding sequence and for the oldest prompt. No waiting one is
    bypassed for ever.

    Whatever a plan in flight computes keeps its slot and its blocks until the result is there, also when it has ended,
    failed or must begin again in the meantime. So a slot in a result is who it was in the plan, nothing is written into
    blocks that are somebody else's, and cached blocks that nobody holds have been computed."""

    def __init__(self, limits: Limits, num_blocks: int, *, now: Clock, record: Record) -> None:
        """``now``: seconds, never going back. ``record(name, value)``: one observation of a metric."""
        self.kv = KvCacheManager(num_blocks)
        # What a sequence alone can reach: growing into a full cache is reaching the end of the context.
        self._context_tokens = min(limits.max_model_len, num_blocks * KV_BLOCK_TOKENS)
        self._budget_tokens = limits.max_num_batched_tokens
        self._pace = StepTimeModel(limits.max_step_s)
        self._running = RunningSet(limits.max_num_seqs)
        self._waiting = WaitingQueue()
        self._admission = Admission(self._waiting, self._running, self.kv)
        self._attempts = RequestRegistry()
        self._timeline = RequestTimings(now, record)
        self._now = now
        self._record = record
        self._in_flight: deque[StepBuilder] = deque()
        self._staying: list[Sequence] = []
        """They do not run any more, but what is in flight computes them; newer ones first."""
        self._replies = OutputBuffer(self._attempts)
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
        """Nothing to do until a message comes: nothing is in flight, and ``schedule`` would give None."""
        return not (self._running.sequences or self._waiting or self._running.has_left_slots or self._in_flight)

    def take_replies(self) -> list[tuple[int, TokenReply]]:
        """(reply_to, reply) since the last call, in order."""
        return self._replies.take()

    # ---- messages

    def receive(self, message: EngineInbound) -> None:
        """Take in a request or an abort. What is known already and what a newer attempt has replaced is ignored."""
        live = self._attempts.live(message.id)
        current = live is not None and live.request.attempt == message.attempt
        if isinstance(message, AbortRequest) and live and current:
            self._release(live)
        elif self._attempts.has_seen(message.id, message.attempt):
            return
        elif live:
            self._release(live)
        if isinstance(message, AbortRequest):
            self._replies.abort(message)
        else:
            self._begin(message)

    def _begin(self, request: GenerateRequest) -> None:
        try:
            sequence = Sequence(request, self._num_received, self._now(), self._context_tokens)
        except ValueError as error:
            self._replies.end(request, "error", f"malformed request: {error}")
            return
        self._num_received += 1
        if sequence.num_prompt_tokens >= self._context_tokens:
            too_long = f"a prompt of {sequence.num_prompt_tokens} tokens leaves no room in {self._context_tokens}"
            self._replies.end(request, "error", f"{too_long} (context length or KV cache)")
        elif sequence.num_output_tokens and (finish := finish_reason(sequence)):
            self._replies.end(request, finish)
        else:
            self._attempts.begin(sequence)
            self._waiting.push(sequence)

    # ---- planning

    def schedule(self) -> StepPlan | None:
        """The next step, or None when there is nothing to tell the ranks, or not before the next result. Cost does not
        depend on how many wait."""
        decoding, prefilling = self._running.split()
        if self._in_flight and self.kv.num_left < sum(sequence.planned % KV_BLOCK_TOKENS == 0 for sequence in decoding):
            return None  # somebody has to go; the next result may show who has ended, and nobody can go before it
        draft = self._new_draft(decoding, prefilling)
        self._plan_decoding(decoding, draft)
        self._plan_chunks(prefilling, draft)
        self._plan_waiting(draft)
        if not (draft.steps or self._running.has_left_slots):
            return None
        self._in_flight.append(draft)
        self._num_plans += 1
        return StepPlan(
            step_id=self._num_plans,
            free=self._running.take_left_slots(),
            new=tuple(draft.new),
            copies=tuple(draft.copies),
            steps=tuple(draft.steps),
        )

    def _new_draft(self, decoding: list[Sequence], prefilling: list[Sequence]) -> StepBuilder:
        """Where there is text, written or waiting, prompts with pictures take a part of the room at most."""
        budget_tokens = self._pace.budget_tokens(len(decoding), self._budget_tokens)
        room_tokens = budget_tokens - len(decoding)
        is_text = self._waiting.has_text or not all(each.request.spans for each in chain(decoding, prefilling))
        return StepBuilder(budget_tokens, ceil(_BESIDE_TEXT * room_tokens) if is_text else room_tokens)

    def _plan_decoding(self, decoding: list[Sequence], draft: StepBuilder) -> None:
        """One token for each, oldest first. A block lasts for some tokens: few of them begin or fill one."""
        for sequence in decoding:
            if draft.preempted and sequence.phase is not Phase.RUNNING:
                return  # it had to go for an older one, and with it all that are newer
            offset = sequence.planned % KV_BLOCK_TOKENS
            new_blocks = () if offset else self._extend(sequence, draft)
            if new_blocks is None:
                return
            draft.token(sequence, new_blocks)
            if offset == KV_BLOCK_TOKENS - 1:
                self._publish(sequence, draft)

    def _plan_chunks(self, prefilling: list[Sequence], draft: StepBuilder) -> None:
        """What is left of the budget for chunks of prompts, oldest first."""
        for sequence in prefilling:
            if draft.room(sequence) and sequence.phase is Phase.RUNNING:
                self._plan_chunk(sequence, (), draft)

    def _plan_chunk(self, sequence: Sequence, new_blocks: tuple[int, ...], draft: StepBuilder) -> None:
        draft.chunk(sequence, new_blocks)
        self._publish(sequence, draft)

    def _publish(self, sequence: Sequence, draft: StepBuilder) -> None:
        """Those that are planned after the sequence may use the blocks that it fills in this step, if all their ids are
        known; others can when they are (see ``_append``)."""
        assert sequence.holding is not None
        num_tokens = min(sequence.planned, len(sequence.tokens))
        if node := self.kv.publish(sequence.holding, sequence.tokens, num_tokens):
            draft.published[sequence.slot] = node

    def _extend(self, sequence: Sequence, draft: StepBuilder) -> tuple[int, ...] | None:
        """Blocks for the sequence's next token, at the cost of the newest ones; None when it is the newest itself."""
        assert sequence.holding is not None
        while (new_blocks := self.kv.extend(sequence.holding, sequence.length)) is None:
            newest = self._running.sequences[-1]
            self._preempt(newest)
            draft.preempted = True
            if newest is sequence:
                return None
        if new_blocks:
            self._admission.outlook.grown(sequence)
        return new_blocks

    def _preempt(self, sequence: Sequence) -> None:
        assert len(self._running.sequences) > 1, "a sequence alone always fits"
        assert not self._in_flight, "its blocks are not free before the result"
        self._begin_again(sequence)
        self._record("num_preemptions", 1)

    def _plan_waiting(self, draft: StepBuilder) -> None:
        if not draft.budget_tokens or draft.preempted:
            return
        for sequence in self._admission.enter(draft.room):
            assert sequence.holding is not None
            if sequence.started_s is None:
                sequence.num_cached_tokens = min(sequence.planned, sequence.num_prompt_tokens)
            self._timeline.started(sequence)
            draft.enter(sequence)
            self._plan_chunk(sequence, tuple(sequence.holding.blocks), draft)
            if not draft.budget_tokens:
                return

    # ---- results

    def apply(self, plan: StepPlan, result: StepResult) -> None:
        """Take in what the ranks have computed of the oldest plan in flight."""
        done = self._in_flight.popleft()
        self._pace.observe(len(done.steps) - done.num_chunks, done.num_prompt_tokens, result.forward_s)
        sampled, logprobs = dict(result.tokens), dict(result.logprobs)
        if failures := failures_of(plan, result, sampled):
            self._take_out(failures, done)
        running = Phase.RUNNING
        for sequence, step in zip(done.sequences, plan.steps, strict=True):
            if step.sample and sequence.phase is running:
                self._append(sequence, sampled[step.slot], logprobs.get(step.slot))
        staying, self._staying = self._staying, []
        for sequence in staying:
            self._leave(sequence)

    def _take_out(self, failures: dict[int, SlotFailure], done: StepBuilder) -> None:
        """End the sequences that could not be computed. What used a block that they should have filled in this very
        step, or one in flight, was computed from nothing: it begins again."""
        for draft in (done, *self._in_flight):
            for slot in failures:
                if slot in draft.published:
                    self.kv.forget(draft.published[slot])
        for sequence in reversed(self._running.sequences[:]):
            assert sequence.holding is not None
            if sequence.phase is not Phase.RUNNING:
                continue  # since the plan was made
            if self.kv.misled(sequence.holding):
                self._begin_again(sequence)
            elif sequence.slot in failures:
                self._fail(sequence, failures[sequence.slot])
        for sequence in self._staying:
            assert sequence.holding is not None
            if sequence.slot in failures:
                self.kv.distrust(sequence.holding)

    def _append(self, sequence: Sequence, token_id: int, logprobs: bytes | None) -> None:
        assert sequence.holding is not None
        sequence.tokens.append(token_id)
        num_computed = len(sequence.tokens) - 1
        if num_computed % KV_BLOCK_TOKENS == 0:
            self.kv.publish(sequence.holding, sequence.tokens, num_computed)
        finish, cached = finish_reason(sequence), 0
        if sequence.first_token_s is None:
            self._timeline.sampled(sequence)
            cached = sequence.num_cached_tokens
        self._replies.token(sequence.request, token_id, finish, logprobs, cached)
        if finish:
            self._timeline.ended(sequence)
            self._admission.outlook.ended(sequence)
            self._release(sequence)

    def _fail(self, sequence: Sequence, failure: SlotFailure) -> None:
        """End a sequence whose chunk could not be computed; nothing that it computed stays in the cache."""
        assert sequence.holding is not None
        self.kv.distrust(sequence.holding)
        self._release(sequence)
        self._replies.end(sequence.request, "media_lost" if failure.media_lost else "error", failure.message)

    # ---- endings

    def _release(self, sequence: Sequence) -> None:
        """Take the sequence out, wherever it is, and let go of all that it occupies."""
        if sequence.holding is None:
            self._waiting.remove(sequence)
        sequence.end()
        self._leave(sequence)

    def _begin_again(self, sequence: Sequence) -> None:
        sequence.wait()
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Give back what the sequence occupies, which does not run any more, when no plan in flight computes it."""
        if sequence.holding is None:
            return
        if any(sequence in draft.sequences for draft in self._in_flight):
            self._staying.append(sequence)
        else:
            self._admission.leave(sequence)
