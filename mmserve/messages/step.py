"""Messages between the router and the ranks.

A plan carries only changes: ranks keep the tokens and the block table of each slot. So no plan may be lost or repeated.
The links are lockstep links (see ipc/lockstep): a receiver ends on a message that does not decode or is not the next
one, and router and ranks restart together.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.sampling import SamplingParams


class NewSequence(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A sequence enters a slot, for the first time or again after preemption or restart."""

    slot: int
    token_ids: bytes
    """int64: the prompt, then the output so far."""
    num_prompt_tokens: int
    spans: tuple[MediaSpan, ...]
    sampling: SamplingParams
    num_prompt_logprobs: int = 0
    """Rows of prompt log-probabilities (see messages/logprobs) that an earlier step has returned."""
    pooling: bool = False
    """Return the embedding of the prompt. No token is sampled."""


class BlockCopy(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Copy the keys and values of a KV block's first ``num_tokens`` tokens, in all layers, to another block."""

    source: int
    target: int
    num_tokens: int


class SequenceStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Compute ``num_tokens`` tokens of a slot from position ``start`` on; in decoding, the token sampled last, or a
    chunk of tokens that the router knows (``StepResult.forced``)."""

    slot: int
    start: int
    num_tokens: int
    new_blocks: tuple[int, ...]
    """Appended to the slot's block table before the step. The first step of a sequence includes its prefix hit."""
    sample: bool
    """True if the chunk ends at the sequence's last token and the step samples the next one."""
    token_ids: tuple[int, ...] = ()
    """The chunk's last tokens, if the ranks do not have them yet: neither given with the sequence nor sampled by a plan
    before this one."""
    draft: tuple[int, ...] = ()
    """Tokens that may follow the chunk, whose keys and values are computed with it. The step (which samples) samples
    after the chunk and after each of these: see ``StepResult.tokens``."""
    num_proposed: int = 0
    """In place of ``draft``: it has up to so many tokens, which the ranks' draft model proposes."""


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="plan"):
    """One forward step for every rank, applied in the order free, new, copies, steps.

    All sources of ``copies`` are read before the first target is written. Steps name slots, not sampled tokens, so a
    plan can be sent before the result of the previous one has arrived.
    """

    step_id: int
    """1 for the first plan of a router, then one more for each."""
    free: tuple[int, ...] = ()
    new: tuple[NewSequence, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    steps: tuple[SequenceStep, ...] = ()


class RowPiece(msgspec.Struct, frozen=True, array_like=True):
    """Consecutive rows of an image's embedding, for ranks on other machines than the arena."""

    embed: Handle
    first: int
    """Offset of ``rows`` in the embedding, in bytes."""
    rows: bytearray


class PlanWithRows(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="plan_rows"):
    """A plan, and all embedding rows that its steps compute. Rows that could not be read are left out, and count as
    lost."""

    plan: StepPlan
    pieces: tuple[RowPiece, ...]


class SlotFailure(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A sequence that could not be computed. Other sequences of the step are not affected."""

    slot: int
    media_lost: bool
    """True: the handle of an image embedding was stale. False: a numerical or internal error, see ``message``."""
    message: str
    grammar: bool = False
    """True: the sequence's grammar could not be followed."""
    no_token: bool = False
    """True: the sequence's parameters ban every token."""


class Proposal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the draft model has made of a step that asked for a draft."""

    slot: int
    num_tokens: int
    """Of the draft. 0 while more of the sequence must be computed first, and after an error."""
    num_missing: int
    """Tokens of the sequence that the draft model has not computed yet."""


class StepResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t", tag="result"):
    """From rank 0, one for each plan with steps. A plan that only frees slots has no result."""

    step_id: int
    tokens: tuple[tuple[int, Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]], ...]
    """(slot, its new token ids) for every step with ``sample`` that did not fail and is not ``deferred``; at least one
    token each. After a draft: the sampled tokens up to the first that is not the one drafted for its place.

    All but the last of a slot's tokens have their keys and values computed, in blocks that the slot had already. More
    than one is allowed only when no later plan with a step for the slot has been sent.
    """
    forced: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """(slot, token ids that follow those of ``tokens``), for slots in ``tokens`` whose grammar allows nothing else.

    Their keys and values are not computed, and the ranks do not have them as the slot's tokens: a plan brings them
    (``SequenceStep.token_ids``). If a plan that was already sent samples the first of them, it samples the same token.
    """
    failures: tuple[SlotFailure, ...] = ()
    deferred: tuple[int, ...] = ()
    """Slots that got no token because their grammar is still being compiled. Their sequences have to be started again:
    the slots get no token any more."""
    logprobs: tuple[tuple[int, tuple[bytes, ...]], ...] = ()
    """(slot, one packed entry a token, see messages/logprobs) for the sequences that asked for log-probabilities."""
    prompt_logprobs: tuple[tuple[int, bytes], ...] = ()
    """(slot, the next rows of the prompt's log-probabilities) for the sequences that asked for those."""
    proposals: tuple[Proposal, ...] = ()
    """For steps with ``num_proposed``."""
    num_draft_rows: int = 0
    """Tokens that the first pass of the draft model has computed: the last of each sequence, and those before that it
    had not computed yet."""
    draft_s: float = 0.0
    """Seconds of ``forward_s`` in which drafts were made."""
    embeddings: tuple[tuple[int, bytes], ...] = ()
    """(slot, float32 [hidden]) for the sequences with ``pooling`` whose prompt the step has completed."""
    forward_s: float = 0.0
    """Seconds from launching the plan, or from the result before if that came later, to collecting its tokens. 0:
    unknown, because it was computed in parts."""
    out_of_memory: bool = False
    """True if memory ran out, so that the plan was computed in parts."""


class DraftTimes(msgspec.Struct, frozen=True):
    """What the ranks' draft model was measured to take at start, in seconds. 0: unknown."""

    pass_s: float = 0.0
    """For one token of one sequence."""
    row_s: float = 0.0
    """For each token of a prompt."""


UNKNOWN_TIMES = DraftTimes()


class RankReady(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="ready"):
    """From rank 0 to the router, its first message: the size of the KV cache of every rank, and the time of a step."""

    num_blocks: int
    block_tokens: int
    """Tokens in a KV block, as the attention backend wants it."""
    chunk_tokens: int = 0
    chunk_s: float = 0.0
    """Seconds of a step with a prompt of ``chunk_tokens`` tokens alone. 0: unknown."""
    draft: DraftTimes = UNKNOWN_TIMES


RankInbound = StepPlan | PlanWithRows
RankOutbound = StepResult | RankReady
