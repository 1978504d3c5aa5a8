"""Chooses what one step computes: a token for each decoding sequence, or several where they are known, chunks of
running prompts, then new sequences.

Pure: the clock is passed in, no I/O.
"""

from __future__ import annotations

import sys
from itertools import chain

from mmserve.messages.step import StepResult
from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.scheduler.admission import Admission
from mmserve.router.scheduler.queues import RunningSet, WaitingQueue
from mmserve.router.scheduler.requests import Record, RequestTimings
from mmserve.router.scheduler.sequence import Sequence, SequenceStatus
from mmserve.router.scheduler.step_budget import ChunkLimit, StepBudget, StepTimeModel
from mmserve.router.scheduler.step_builder import StepBuilder
from mmserve.router.scheduler.suspects import Suspects
from mmserve.router.speculation.draft_source import Draft
from mmserve.router.speculation.drafter import Drafter

_STARTED_TOGETHER = 1 / 4
"""Part of the waiting sequences that a step starts at least, if it has room. With fewer, the last of 64 short prompts
would wait three times as long."""


class StepPlanner:
    """Plans steps over the sequences of ``running`` and ``waiting``. Owns how many prompt tokens a step may have.

    ``max_step_tokens``: of one step. ``largest_image``: tokens that an image may have if no chunk may end inside one;
    None: chunks may. ``drafter``: None: nothing is drafted.
    """

    def __init__(
        self,
        kv: KvCacheManager,
        running: RunningSet,
        waiting: WaitingQueue,
        admission: Admission,
        timings: RequestTimings,
        record: Record,
        *,
        max_step_tokens: int,
        step_times: StepTimeModel,
        largest_image: int | None,
        drafter: Drafter | None,
    ) -> None:
        self.suspects = Suspects()
        self._kv = kv
        self._running = running
        self._waiting = waiting
        self._admission = admission
        self._timings = timings
        self._record = record
        self._max_step_tokens = max_step_tokens
        self._largest_image = largest_image
        self._step_times = step_times
        self._chunk_limit = ChunkLimit(max_step_tokens)
        self._drafter = drafter

    def observe_chunk(self, num_tokens: int, seconds: float) -> None:
        """The ranks have computed a step with a prompt of so many tokens. 0 seconds: unknown."""
        self._step_times.observe(0, num_tokens, seconds)

    def observe(self, done: StepBuilder, result: StepResult) -> None:
        """The ranks have computed this step."""
        num_drafted = self._observe_drafts(done, result) if done.num_draft_tokens else 0
        if self._drafter is not None and done.only_decodes:
            step_s = result.forward_s - result.draft_s
            self._drafter.observe_step(len(done.steps), num_drafted, step_s if result.forward_s else 0.0)
        if not done.num_draft_tokens:
            self._observe_step_time(done, result)
        self._chunk_limit.observe(done.num_prompt_tokens, out_of_memory=result.out_of_memory)

    def _observe_step_time(self, done: StepBuilder, result: StepResult) -> None:
        self._step_times.observe(len(done.steps) - done.num_prompt_chunks, done.num_prompt_tokens, result.forward_s)

    def _observe_drafts(self, done: StepBuilder, result: StepResult) -> int:
        """Returns how many drafted tokens the step has computed."""
        sampled, num_accepted, num_drafted = dict(result.tokens), 0, 0
        proposed = {each.slot: each for each in result.proposals}
        for sequence, step in zip(done.sequences, done.steps, strict=True):
            drafted, source = len(step.draft), sequence.draft_source
            if step.num_proposed and (proposal := proposed.get(step.slot)) is not None:
                drafted = proposal.num_tokens
                if source is not None:
                    source.computed(step.start + 1, proposal.num_missing)
            num_drafted += drafted
            if not drafted or step.slot not in sampled:
                continue
            accepted = len(sampled[step.slot]) - 1
            num_accepted += accepted
            if self._drafter is not None and source is not None:
                self._drafter.observe_draft(source, drafted, accepted)
        if self._drafter is not None and proposed:
            lengths = [proposal.num_tokens for proposal in result.proposals]
            self._drafter.observe_proposals(lengths, result.num_draft_rows, result.draft_s)
            self._record("draft_seconds", result.draft_s)
        self._record("draft_tokens", num_drafted)
        self._record("accepted_draft_tokens", num_accepted)
        return num_drafted

    def plan(self, *, may_preempt: bool) -> StepBuilder | None:
        """The next step, which may be empty. None: it needs preemption, which has to wait for the next result.

        The cost does not depend on how many sequences wait. ``may_preempt``: no plan is in flight, so the blocks of a
        preempted sequence are free at once.
        """
        decoding, prefilling = self._running.partition()
        if not may_preempt and self._kv.num_available < self._num_blocks_needed(decoding):
            return None  # the next result may also end a sequence and free blocks
        step, budget = StepBuilder(), self._budget(decoding, prefilling)
        drafts = self._drafts(decoding) if self._drafter is not None and not prefilling else {}
        has_preempted = self._plan_decoding(decoding, drafts, step, budget)
        self._plan_prefilling(prefilling, step, budget)
        if not has_preempted:
            self._plan_waiting(step, budget)
        return step

    def _num_blocks_needed(self, decoding: list[Sequence]) -> int:
        block_tokens = self._kv.block_tokens
        return sum(
            self._num_missing_blocks(each) if each.num_unsent else each.num_computed_tokens % block_tokens == 0
            for each in decoding
        )

    def _num_missing_blocks(self, sequence: Sequence) -> int:
        assert sequence.block_table is not None
        return max(0, self._kv.blocks_for(sequence.length) - len(sequence.block_table.blocks))

    def _budget(self, decoding: list[Sequence], prefilling: list[Sequence]) -> StepBudget:
        has_text = self._waiting.has_text or not all(each.request.spans for each in chain(decoding, prefilling))
        room = self._max_step_tokens - len(decoding)
        num_tokens = self._step_times.chunk_budget(len(decoding), min(room, self._chunk_limit.num_tokens))
        if self._largest_image is None:
            return StepBudget(num_tokens, beside_text=has_text)
        return StepBudget(num_tokens, beside_text=has_text, image_room=room, largest_image=self._largest_image)

    def _drafts(self, decoding: list[Sequence]) -> dict[Sequence, Draft]:
        """Drafts for a step without prompts; none if it is likely to start one."""
        if self._drafter is None or (len(self._waiting) and self._running.has_free_slot):
            return {}
        return self._drafter.drafts(decoding)

    def _plan_decoding(
        self,
        decoding: list[Sequence],
        drafts: dict[Sequence, Draft],
        step: StepBuilder,
        budget: StepBudget,
    ) -> bool:
        """One token for each sequence, oldest first, and more of those that know theirs or have a draft, as far as the
        budget goes.

        True if sequences had to be preempted.
        """
        block_tokens, last_offset = self._kv.block_tokens, self._kv.block_tokens - 1
        running, num_running = SequenceStatus.RUNNING, len(self._running.sequences)
        for sequence in decoding:
            if sequence.status is not running:
                break  # preempted for an older sequence, like all after it
            offset = sequence.num_computed_tokens % block_tokens
            new_blocks = () if offset and not sequence.num_unsent else self._extend(sequence)
            if new_blocks is None:
                break
            if sequence.num_unsent:
                step.add_known(sequence, 1 + budget.take_known(sequence.num_remaining_tokens - 1), new_blocks)
                self._cache_full_blocks(sequence, step)
                continue
            draft = drafts.get(sequence)
            if draft is not None and (num_tokens := budget.take_known(draft.num_tokens)):
                self._plan_draft(sequence, draft.first(num_tokens), new_blocks, step, num_running)
            else:
                step.add_decode(sequence, new_blocks)
            if offset == last_offset:
                self._cache_full_blocks(sequence, step)
        return len(self._running.sequences) < num_running

    def _plan_draft(
        self,
        sequence: Sequence,
        draft: Draft,
        new_blocks: tuple[int, ...],
        step: StepBuilder,
        num_running: int,
    ) -> None:
        """Decodes with as much of the draft as the KV cache has room for, beside a block for each running sequence."""
        table = sequence.block_table
        assert table is not None
        length, num_blocks = sequence.length, len(table.blocks)
        spare = max(0, self._kv.num_available - num_running)
        draft = draft.first((num_blocks + spare) * self._kv.block_tokens - length)
        if added := self._kv.extend(table, length + draft.num_tokens):
            self._admission.kv_demand.mark_grown(sequence)
            new_blocks += added
        if draft.num_tokens:
            step.add_draft(sequence, new_blocks, draft)
        else:
            step.add_decode(sequence, new_blocks)

    def _plan_prefilling(self, prefilling: list[Sequence], step: StepBuilder, budget: StepBudget) -> None:
        """Chunks of running prompts, oldest first, as far as the budget goes."""
        for sequence in prefilling:
            if budget.room(sequence) and sequence.status is SequenceStatus.RUNNING:
                self._plan_chunk(sequence, (), step, budget)

    def _plan_waiting(self, step: StepBuilder, budget: StepBudget) -> None:
        """Starts waiting sequences, each with its first chunk: some, and more while their prompts are short."""
        if not budget.num_tokens:
            return
        num_steps, num_tokens = len(step.steps), step.num_prompt_tokens
        least, enough = len(self._waiting) * _STARTED_TOGETHER, self._step_times.enough_to_start
        for sequence in self._admission.admit(lambda waiting: self._room(waiting, budget)):
            assert sequence.block_table is not None
            self.suspects.started(sequence)
            if sequence.num_ready_tokens == sys.maxsize:
                self._timings.started(sequence)
            step.add_sequence(sequence)
            self._plan_chunk(sequence, tuple(sequence.block_table.blocks), step, budget)
            has_enough = step.num_prompt_tokens - num_tokens >= enough
            if not budget.num_tokens or (has_enough and len(step.steps) - num_steps >= least):
                return

    def _room(self, waiting: Sequence, budget: StepBudget) -> int:
        """Prompt tokens that a waiting sequence may compute in this step; 0: it may not start."""
        return budget.room(waiting) if self.suspects.may_start(waiting) else 0

    def _plan_chunk(
        self, sequence: Sequence, new_blocks: tuple[int, ...], step: StepBuilder, budget: StepBudget
    ) -> None:
        step.add_chunk(sequence, budget.take(sequence), new_blocks)
        self._cache_full_blocks(sequence, step)

    def _cache_full_blocks(self, sequence: Sequence, step: StepBuilder) -> None:
        """Caches the blocks that the sequence fills in this step, for sequences planned after it.

        A block whose last token is still being sampled follows with the result.
        """
        assert sequence.block_table is not None
        num_tokens = sequence.num_known_computed_tokens
        if node := self._kv.cache_full_blocks(sequence.block_table, sequence.tokens, num_tokens):
            step.cached_nodes[sequence.slot] = node

    def _extend(self, sequence: Sequence) -> tuple[int, ...] | None:
        """New blocks for the sequence's next token; preempts the newest sequences if too few are available.

        None if the sequence itself was preempted.
        """
        assert sequence.block_table is not None
        while (new_blocks := self._kv.extend(sequence.block_table, sequence.length)) is None:
            newest = self._running.sequences[-1]
            self._preempt(newest)
            if newest is sequence:
                return None
        if new_blocks:
            self._admission.kv_demand.mark_grown(sequence)
        return new_blocks

    def _preempt(self, sequence: Sequence) -> None:
        assert len(self._running.sequences) > 1, "a sequence alone always fits"
        sequence.requeue()
        self._admission.release(sequence)
        self._record("num_preemptions", 1)
