"""The first steps of a rank: they pay for first calls, show that the model computes, and time a chunk of a prompt and
the draft model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import UNKNOWN_TIMES, DraftTimes, NewSequence, SequenceStep, StepPlan, StepResult
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.loader.weights import Progress
from mmserve.runtime.errors import StartupError

_FIRST_TOKENS, _FIRST_DRAFT_TOKENS = 8, 2
_FIRST_CHUNK_TOKENS, _CHUNK_GROWTH = 16, 4
_DRAFT_PROMPT_TOKENS = 255
"""At most: with the token after it, as many as one pass of the draft model computes."""
_GREEDY = SamplingParams(max_tokens=2, temperature=0.0)


class ChunkTime(NamedTuple):
    """How long a chunk of a prompt has taken, on the slowest rank. ``draft``: on this rank."""

    num_tokens: int
    seconds: float
    draft: DraftTimes = UNKNOWN_TIMES


class WarmUp:
    """Steps of one sequence alone, in slot 0 of ranks that have no other. All ranks call the same methods."""

    def __init__(self, step: Callable[[StepPlan], StepResult], tp: TpGroup, device: torch.device, block_tokens: int):
        self._step, self._tp, self._device, self._block_tokens = step, tp, device, block_tokens

    def first_steps(self, *, with_draft: bool = False) -> None:
        """Prefill and decode. Raises StartupError if the model cannot compute or its output is not finite.

        ``with_draft``: the draft model computes as well.
        """
        self._prefill(_FIRST_TOKENS)
        self._compute(StepPlan(step_id=0, steps=(SequenceStep(0, _FIRST_TOKENS, 1, (), True),)))
        if with_draft:
            step = SequenceStep(0, _FIRST_TOKENS + 1, 1, (), True, num_proposed=_FIRST_DRAFT_TOKENS)
            result = self._compute(StepPlan(step_id=0, steps=(step,)))
            if not result.proposals[0].num_tokens:
                raise StartupError("the draft model's first forward pass fails; choose another --speculative-model")
        self._step(StepPlan(step_id=0, free=(0,)))

    def graphs(self, rungs: Sequence[int], num_blocks: int, progress: Progress) -> None:
        """Compute a step of each number of rows, the largest first: so their graphs are captured, and share its memory.

        ``rungs``: ascending, at most as many rows as there are slots.
        """
        for done, rows in enumerate(reversed(rungs)):
            progress(done, len(rungs), "graphs")
            new = tuple(
                NewSequence(slot=slot, token_ids=bytes(8), num_prompt_tokens=1, spans=(), sampling=_GREEDY)
                for slot in range(rows)
            )
            steps = tuple(SequenceStep(slot, 0, 1, (slot % num_blocks,), True) for slot in range(rows))
            self._compute(StepPlan(step_id=0, new=new, steps=steps))
            self._step(StepPlan(step_id=0, free=tuple(range(rows))))
        if rungs:
            progress(len(rungs), len(rungs), "graphs")

    def time_chunk(self, max_tokens: int, max_s: float) -> ChunkTime:
        """Times chunks of growing size, and returns the last: of ``max_tokens``, or one that takes ``max_s`` / 4.

        Small chunks first, because a large one may take minutes on a slow machine.
        """
        for num_tokens in _chunk_sizes(max_tokens):
            # The better of two, as the first may pay for first calls with this size or for other work on the machine.
            seconds = min(self._prefill(num_tokens), self._prefill(num_tokens))
            self._step(StepPlan(step_id=0, free=(0,)))
            if seconds * _CHUNK_GROWTH >= max_s:
                break
        return ChunkTime(num_tokens, seconds)

    def time_draft(self, num_tokens: int) -> DraftTimes:
        """Times the draft model with a prompt of about so many tokens, and with one of one token.

        The first pass of the latter has two rows, as it has for a sequence whose last draft was right.
        """
        longest = max(1, min(num_tokens, _DRAFT_PROMPT_TOKENS) - 1)
        return DraftTimes(pass_s=self._draft(1), row_s=self._draft(longest) / (longest + 1))

    def _draft(self, num_tokens: int) -> float:
        """Seconds of the draft model for one token after a prompt of so many and the next token, the better of two."""
        return min(self._draft_once(num_tokens), self._draft_once(num_tokens))

    def _draft_once(self, num_tokens: int) -> float:
        self._prefill(num_tokens, room=2)
        step = SequenceStep(0, num_tokens, 1, (), True, num_proposed=1)
        result = self._compute(StepPlan(step_id=0, steps=(step,)))
        self._step(StepPlan(step_id=0, free=(0,)))
        return result.draft_s

    def _prefill(self, num_tokens: int, *, room: int = 0) -> float:
        """Seconds of a step with a prompt of so many tokens, on the slowest rank. ``room``: for tokens after it."""
        blocks = tuple(range(-(-(num_tokens + room) // self._block_tokens)))
        new = NewSequence(
            slot=0, token_ids=bytes(8 * num_tokens), num_prompt_tokens=num_tokens, spans=(), sampling=_GREEDY
        )
        result = self._compute(StepPlan(step_id=0, new=(new,), steps=(SequenceStep(0, 0, num_tokens, blocks, True),)))
        # All ranks must stop at the same size.
        return float(self._tp.max(torch.tensor([result.forward_s], device=self._device)))

    def _compute(self, plan: StepPlan) -> StepResult:
        result = self._step(plan)
        if result.failures:
            remedy = "choose a smaller model or a --quantization" if result.out_of_memory else "try another --dtype"
            raise StartupError(f"the model's first forward pass fails: {result.failures[0].message}; {remedy}")
        return result


def _chunk_sizes(max_tokens: int) -> Iterator[int]:
    num_tokens = min(_FIRST_CHUNK_TOKENS, max_tokens)
    while num_tokens < max_tokens:
        yield num_tokens
        num_tokens = min(_CHUNK_GROWTH * num_tokens, max_tokens)
    yield num_tokens
