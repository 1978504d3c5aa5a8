"""A step plan being made: what the ranks are told about the sequences that compute. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmserve.messages.step import BlockCopy, NewSequence, SequenceStep
from mmserve.router.kv_cache.prefix_cache import Node
from mmserve.router.scheduler.sequence import Sequence


@dataclass
class StepBuilder:
    """``budget_tokens``: how many more the step can take; ``picture_tokens``: how many of prompts with pictures."""

    budget_tokens: int
    picture_tokens: int
    new: list[NewSequence] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    steps: list[SequenceStep] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    """Whose steps they are."""
    published: dict[int, Node] = field(default_factory=dict)
    """By slot: the first block that its step fills and others may use from now on."""
    num_chunks: int = 0
    """Of ``steps``: those of prompts, the others decode."""
    num_prompt_tokens: int = 0
    preempted: bool = False

    def room(self, sequence: Sequence) -> int:
        """How many tokens of the sequence's prompt the step can take."""
        return min(self.budget_tokens, self.picture_tokens) if sequence.request.spans else self.budget_tokens

    def enter(self, sequence: Sequence) -> None:
        """The ranks do not know the sequence yet, or have forgotten it."""
        request = sequence.request
        self.new.append(
            NewSequence(
                slot=sequence.slot,
                token_ids=sequence.tokens.tobytes(),
                num_prompt_tokens=sequence.num_prompt_tokens,
                spans=request.spans,
                sampling=request.sampling,
            )
        )
        holding = sequence.holding
        assert holding is not None
        if (hit := holding.hit).num_copied:
            own = holding.blocks[holding.num_hit_blocks]
            self.copies.append(BlockCopy(source=hit.copied_block, target=own, num_tokens=hit.num_copied))

    def chunk(self, sequence: Sequence, new_blocks: tuple[int, ...]) -> None:
        """Compute as much of the sequence's prompt as there is room for."""
        num_tokens = min(sequence.num_remaining, self.room(sequence))
        if sequence.request.spans:
            self.picture_tokens -= num_tokens
        start = sequence.planned
        sample = sequence.plan(num_tokens)
        self.budget_tokens -= num_tokens
        self.num_chunks += 1
        self.num_prompt_tokens += num_tokens
        self.sequences.append(sequence)
        self.steps.append(SequenceStep(sequence.slot, start, num_tokens, new_blocks, sample))

    def token(self, sequence: Sequence, new_blocks: tuple[int, ...]) -> None:
        """Compute the last token of a sequence that decodes."""
        start = sequence.plan_token()
        self.budget_tokens -= 1
        self.sequences.append(sequence)
        self.steps.append(SequenceStep(sequence.slot, start, 1, new_blocks, True))
