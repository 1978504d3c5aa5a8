"""Builds the plan of one step, and keeps what is needed to apply its result. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from mmserve.messages.step import BlockCopy, NewSequence, SequenceStep, SlotFailure, StepPlan, StepResult
from mmserve.router.kv_cache.prefix_cache import Node
from mmserve.router.scheduler.sequence import Sequence
from mmserve.router.speculation.draft_source import Draft


@dataclass
class StepBuilder:
    """The sequences of one step, first while it is planned, then while it is in flight."""

    sequences: list[Sequence] = field(default_factory=list)
    """The sequence of each of ``steps``."""
    steps: list[SequenceStep] = field(default_factory=list)
    cached_nodes: dict[int, Node] = field(default_factory=dict)
    """Slot -> first block that the slot's step fills and that is in the prefix cache already."""
    num_prompt_chunks: int = 0
    """Steps that compute a prompt; the others decode."""
    num_without_sample: int = 0
    """Steps after which no token is sampled."""
    num_prompt_tokens: int = 0
    """Tokens of prompts, and those of decoding sequences beyond one for each."""
    num_draft_tokens: int = 0
    """Those that the draft model proposes count in full."""
    prompt_ends: list[Sequence] = field(default_factory=list)
    """Sequences that end with their prompt, which this step completes."""
    _new: list[NewSequence] = field(default_factory=list)
    _copies: list[BlockCopy] = field(default_factory=list)

    def add_sequence(self, sequence: Sequence) -> None:
        """Introduces a sequence that the ranks do not know: new, or resumed."""
        request = sequence.request
        self._new.append(
            NewSequence(
                slot=sequence.slot,
                token_ids=sequence.tokens.tobytes(),
                num_prompt_tokens=sequence.num_prompt_tokens,
                spans=request.spans,
                sampling=request.sampling,
                num_prompt_logprobs=sequence.num_prompt_logprobs,
                pooling=request.pooling,
            )
        )
        table = sequence.block_table
        assert table is not None
        if (hit := table.prefix_hit).num_copied_tokens:
            target = table.blocks[table.num_hit_blocks]
            self._copies.append(BlockCopy(source=hit.copy_source, target=target, num_tokens=hit.num_copied_tokens))

    def add_chunk(self, sequence: Sequence, num_tokens: int, new_blocks: tuple[int, ...]) -> None:
        """Computes the next ``num_tokens`` tokens of a prompt."""
        self.num_prompt_chunks += 1
        self.num_prompt_tokens += num_tokens
        start = sequence.num_computed_tokens
        is_last = sequence.plan_chunk(num_tokens)
        sample = is_last and not sequence.prompt_only
        if is_last and not sample:
            self.prompt_ends.append(sequence)
        self._add(sequence, SequenceStep(sequence.slot, start, num_tokens, new_blocks, sample))

    def add_known(self, sequence: Sequence, num_tokens: int, new_blocks: tuple[int, ...]) -> None:
        """Computes the next ``num_tokens`` tokens of a decoding sequence, which the router knows."""
        self.num_prompt_tokens += num_tokens - 1
        start, token_ids = sequence.num_computed_tokens, sequence.take_unsent(num_tokens)
        sample = sequence.plan_chunk(num_tokens)
        self._add(sequence, SequenceStep(sequence.slot, start, num_tokens, new_blocks, sample, token_ids))

    @property
    def only_decodes(self) -> bool:
        """Each step computes one token, which was sampled before, and those of a draft."""
        return not self.num_prompt_tokens

    def add_draft(self, sequence: Sequence, new_blocks: tuple[int, ...], draft: Draft) -> None:
        """Computes the last token of a sequence and those of a draft, and samples after each."""
        self.num_draft_tokens += draft.num_tokens
        sequence.has_draft = True
        proposed = 0 if draft.token_ids else draft.num_tokens
        start = sequence.plan_decode()
        step = SequenceStep(sequence.slot, start, 1, new_blocks, True, draft=draft.token_ids, num_proposed=proposed)
        self._add(sequence, step)

    def add_decode(self, sequence: Sequence, new_blocks: tuple[int, ...]) -> None:
        """Computes the last token of a sequence and samples the next one."""
        position = sequence.plan_decode()
        self.sequences.append(sequence)
        self.steps.append(SequenceStep(sequence.slot, position, 1, new_blocks, True))

    def _add(self, sequence: Sequence, step: SequenceStep) -> None:
        self.num_without_sample += not step.sample
        self.sequences.append(sequence)
        self.steps.append(step)

    def build(self, step_id: int, freed_slots: tuple[int, ...]) -> StepPlan:
        """The plan to send. ``freed_slots``: slots that the ranks clear first."""
        return StepPlan(
            step_id=step_id,
            free=freed_slots,
            new=tuple(self._new),
            copies=tuple(self._copies),
            steps=tuple(self.steps),
        )

    def failures(self, result: StepResult, sampled_slots: Collection[int]) -> dict[int, SlotFailure]:
        """Slot -> failure: those that the ranks report, and slots that should have sampled a token and did not.

        ``sampled_slots``: slots with tokens in the result, all of which should have sampled (see EngineClient).
        """
        num_answered = len(sampled_slots) + len(result.deferred)
        if not result.failures and num_answered == len(self.steps) - self.num_without_sample:
            return {}
        answered = {*sampled_slots, *result.deferred}
        missing = [step.slot for step in self.steps if step.sample and step.slot not in answered]
        failures = {slot: SlotFailure(slot=slot, media_lost=False, message="no token came back") for slot in missing}
        failures.update((failure.slot, failure) for failure in result.failures)
        return failures
