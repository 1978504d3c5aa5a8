"""The sequences of a rank, by slot: tokens, image spans and block tables. Plans are differences to this state.

Pure Python and numpy, no torch. Every rank applies the same plans, so all ranks have the same state and refuse the
same steps.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.media import MediaSpan, end_beside_images
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import BlockCopy, NewSequence, SequenceStep, StepPlan
from mmserve.model_backend.models.positions import PositionFunction, SlotPositions, sequential_positions

Int64s = npt.NDArray[np.int64]


@dataclass
class Slot:
    """One sequence. ``tokens`` are those known on the host: what came with it, and what was collected since."""

    tokens: array[int]
    num_prompt_tokens: int
    spans: tuple[MediaSpan, ...]
    sampling: SamplingParams
    num_given: int
    """The first so many tokens are read from ``tokens``: those that came with the sequence, and up to the last one that
    a plan brought. Later ones were sampled here: decode rows read them on the device."""
    num_prompt_logprobs: int
    """Rows of prompt log-probabilities that were returned before the sequence entered the slot."""
    pooling: bool
    length: int
    """Tokens when all launched steps are done; tokens from ``len(tokens)`` on are not yet known on the host."""
    num_blocks: int = 0

    def chunk(self, start: int, num_tokens: int) -> Int64s:
        """Token ids from ``start`` on."""
        return np.frombuffer(self.tokens[start : start + num_tokens], dtype=np.int64)

    def spans_within(self, start: int, num_tokens: int) -> list[MediaSpan]:
        """Spans that overlap the chunk."""
        end = start + num_tokens
        return [span for span in self.spans if span.start < end and span.start + span.num_tokens > start]


class InputBatch:
    """All slots of a rank. ``asking``: those whose sequences ask for something of their prompt.

    ``blocks[slot, i]`` is the slot's i-th KV block; entries from the slot's ``num_blocks`` on are meaningless.
    """

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        num_blocks: int,
        block_tokens: int,
        vocab_size: int,
        positions_of: PositionFunction = sequential_positions,
        *,
        whole_images: bool = False,
    ) -> None:
        """``whole_images``: a chunk that ends inside an image is refused, because attention in it reads the rest."""
        self.blocks: Int64s = np.zeros((max_num_seqs, -(-max_model_len // block_tokens) + 1), dtype=np.int64)
        self._num_blocks = num_blocks
        self._block_tokens = block_tokens
        self._vocab_size = vocab_size
        self.whole_images = whole_images
        self._slots: dict[int, Slot] = {}
        self.asking: set[int] = set()
        self.rotary_positions = SlotPositions(positions_of, max_num_seqs)

    def __getitem__(self, slot: int) -> Slot:
        return self._slots[slot]

    def apply(self, plan: StepPlan) -> dict[int, str]:
        """Free slots, add new sequences, append new blocks and tokens, in this order. Returns slot -> why its step is
        refused.

        The tokens of all plans before must be known if the plan brings tokens or drafts.
        """
        for slot in plan.free:
            self._slots.pop(slot, None)
            self.asking.discard(slot)
        refused = dict(filter(None, map(self._add, plan.new)))
        invalid_targets = {copy.target for copy in plan.copies if not self._is_valid(copy)}
        for step in plan.steps:
            if step.slot in refused:
                continue
            problem = self._append_blocks(step) or self._append_tokens(step) or self._check(step)
            if problem := problem or self._check_draft(step):
                refused[step.slot] = problem
            elif not invalid_targets.isdisjoint(step.new_blocks):
                refused[step.slot] = "a copy to one of its KV blocks is out of range"
        return refused

    def valid_copies(self, plan: StepPlan) -> list[BlockCopy]:
        """The plan's copies without those that are out of range; ``apply`` refuses the steps that need the latter."""
        return [copy for copy in plan.copies if self._is_valid(copy)]

    def cut(self, step: SequenceStep, num_tokens: int) -> int:
        """After how many tokens the step may be cut instead of after ``num_tokens``; 0 or all: not here."""
        if not self.whole_images:
            return num_tokens
        end = step.start + num_tokens
        return end_beside_images(self[step.slot].spans, step.start, end) - step.start if num_tokens else 0

    def slot_mapping(self, slots: Int64s, positions: Int64s) -> Int64s:
        """Where the K and V of each (slot, position) are stored: block * tokens per block + offset."""
        blocks = self.blocks[slots, positions // self._block_tokens]
        return blocks * self._block_tokens + positions % self._block_tokens

    def _add(self, new: NewSequence) -> tuple[int, str] | None:
        self._slots.pop(new.slot, None)
        self.asking.discard(new.slot)
        tokens = array("q")
        if not 0 <= new.slot < len(self.blocks) or len(new.token_ids) % tokens.itemsize:
            return new.slot, "malformed sequence"
        try:
            self.rotary_positions.enter(new.slot, new.spans)
        except ValueError as error:
            return new.slot, f"malformed sequence: {error}"
        tokens.frombytes(new.token_ids)
        self._slots[new.slot] = Slot(
            tokens,
            new.num_prompt_tokens,
            new.spans,
            new.sampling,
            num_given=len(tokens),
            num_prompt_logprobs=new.num_prompt_logprobs,
            pooling=new.pooling,
            length=len(tokens),
        )
        if new.pooling or new.sampling.prompt_logprobs is not None:
            self.asking.add(new.slot)
        return None

    def _is_valid(self, copy: BlockCopy) -> bool:
        return (
            0 <= copy.source < self._num_blocks
            and 0 <= copy.target < self._num_blocks
            and 0 < copy.num_tokens <= self._block_tokens
        )

    def _append_blocks(self, step: SequenceStep) -> str:
        """Append the step's new blocks; a reason if they do not fit."""
        if (slot := self._slots.get(step.slot)) is None:
            return "the slot holds no sequence"
        end = slot.num_blocks + len(step.new_blocks)
        if end > self.blocks.shape[1] or not all(0 <= block < self._num_blocks for block in step.new_blocks):
            return "its KV blocks are out of range"
        self.blocks[step.slot, slot.num_blocks : end] = step.new_blocks
        slot.num_blocks = end
        return ""

    def _append_tokens(self, step: SequenceStep) -> str:
        """Append the tokens that the step brings; a reason if they do not end with its chunk."""
        if not step.token_ids:
            return ""
        slot, end = self._slots[step.slot], step.start + step.num_tokens
        if len(slot.tokens) + len(step.token_ids) != end:
            return f"a chunk that ends at {end} brings {len(step.token_ids)} tokens for {len(slot.tokens)}"
        if not all(0 <= token_id < self._vocab_size for token_id in step.token_ids):
            return "a token id is not in the vocabulary"
        slot.tokens.extend(step.token_ids)
        slot.num_given = slot.length = end
        return ""

    def _check(self, step: SequenceStep) -> str:
        """A reason if the chunk is not within the sequence, its blocks, or the vocabulary."""
        slot = self._slots[step.slot]
        end = step.start + step.num_tokens
        if step.num_tokens < 1 or step.start < 0 or end > slot.length:
            return f"the chunk [{step.start}, {end}) is not within its {slot.length} tokens"
        if step.sample and end != slot.length:
            return "the step samples, but its chunk does not end at the sequence's last token"
        if self.whole_images and end_beside_images(slot.spans, step.start, end) != end:
            return f"the chunk [{step.start}, {end}) ends inside an image"
        if end > slot.num_blocks * self._block_tokens:
            return f"the chunk ends at {end}, beyond its {slot.num_blocks} KV blocks"
        if step.num_tokens == 1 and step.start >= slot.num_given:
            return ""  # a token that was sampled here
        if end > len(slot.tokens):
            return "a chunk of several tokens includes one that is not known yet"
        ids = slot.chunk(step.start, step.num_tokens)
        if np.any(unembeddable(ids, step.start, slot.spans_within(step.start, step.num_tokens), self._vocab_size)):
            return "a token id is neither in the vocabulary nor covered by an image"
        return ""

    def _check_draft(self, step: SequenceStep) -> str:
        """A reason if the step's draft cannot be computed."""
        if not (num_drafted := len(step.draft) or step.num_proposed):
            return ""
        end = step.start + step.num_tokens
        if not step.sample or end != len(self._slots[step.slot].tokens):
            return "a draft does not follow the sequence's last token"
        if not all(0 <= token_id < self._vocab_size for token_id in step.draft):
            return "a drafted token id is not in the vocabulary"
        if end + num_drafted > self._slots[step.slot].num_blocks * self._block_tokens:
            return f"a draft ends at {end + num_drafted}, beyond the sequence's KV blocks"
        return ""


def unembeddable(ids: Int64s, start: int, spans: Iterable[MediaSpan], vocab_size: int) -> npt.NDArray[np.bool_]:
    """True where a token id (of the chunk at ``start``) is neither text nor a virtual id inside a span."""
    covered = np.zeros(len(ids), dtype=np.bool_)
    for span in spans:
        covered[max(0, span.start - start) : max(0, span.start + span.num_tokens - start)] = True
    text = (ids >= 0) & (ids < vocab_size)
    return ~np.where(ids >= FIRST_VIRTUAL_TOKEN, covered, text)
