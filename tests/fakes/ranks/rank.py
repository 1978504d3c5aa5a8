"""A model rank without a model.

Its "KV cache" is a list of cells, one per token. The next token is a hash of all cells, read through the block table:
a wrong table, or a block that is shared too early or reused too soon, gives wrong tokens.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Sequence

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.lockstep import LockstepReceiver, LockstepSender
from mmserve.messages.logprobs import NO_TOKEN, pack
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import (
    NewSequence,
    RankInbound,
    RankOutbound,
    RankReady,
    SequenceStep,
    SlotFailure,
    StepPlan,
    StepResult,
)

VOCAB_SIZE = 40
BLOCK_TOKENS = 16
_MODULUS = (1 << 61) - 1
_GARBAGE = -1


def _cell(token_id: int, position: int, state: int) -> int:
    return (token_id * 1_000_003 + position * 8_191 + state * 31 + 17) % _MODULUS


def _absorb(state: int, cell: int) -> int:
    return (state * 1_315_423_911 + cell) % _MODULUS


def _sample(state: int, sampling: SamplingParams, num_output: int) -> int:
    """A token id. Like a rank, masks stop ids until there are min_tokens output tokens."""
    token_id = (state ^ sampling.seed * 7_919) % VOCAB_SIZE
    while num_output < sampling.min_tokens and token_id in sampling.ending_token_ids:
        token_id = (token_id + 1) % VOCAB_SIZE
    return token_id


def cells_of(token_ids: Sequence[int]) -> list[int]:
    """The cells that the KV cache must hold for these tokens."""
    cells: list[int] = []
    state = 0
    for position, token_id in enumerate(token_ids):
        cells.append(_cell(token_id, position, state))
        state = _absorb(state, cells[-1])
    return cells


def _logprobs(state: int, token_id: int, sampling: SamplingParams) -> bytes | None:
    """Packed log-probabilities: not those of a distribution, but unique to this position of this sequence."""
    if sampling.logprobs is None:
        return None
    return pack([(token_id, -float(state % 4096)), *((top, -float(top)) for top in range(sampling.logprobs))])


def _prompt_row(state: int, token_id: int, top: int) -> bytes:
    """A row of prompt log-probabilities, as unique as ``_logprobs``."""
    if token_id >= FIRST_VIRTUAL_TOKEN:
        return pack([(NO_TOKEN, 0.0)] * (1 + top))
    return pack([(token_id, -float(state % 4096)), *((rank, -float(rank)) for rank in range(top))])


def _embedding(state: int) -> bytes:
    return state.to_bytes(8, "little")


def prompt_alone(prompt: Sequence[int], top: int) -> tuple[list[bytes], bytes]:
    """The rows of a prompt's log-probabilities, and its embedding, computed without blocks."""
    rows, state = [], 0
    for cell, following in itertools.zip_longest(cells_of(prompt), prompt[1:]):
        state = _absorb(state, cell)
        if following is not None:
            rows.append(_prompt_row(state, following, top))
    return rows, _embedding(state)


def generate_alone(
    prompt: Sequence[int], sampling: SamplingParams, context_tokens: int
) -> tuple[list[int], list[bytes], str]:
    """The output of a sequence computed by itself, without blocks, its log-probabilities, and why it ends."""
    tokens, output, state = list(prompt), [], 0
    logprobs: list[bytes] = []
    for cell in cells_of(tokens):
        state = _absorb(state, cell)
    if not sampling.max_tokens:
        return [], [], "length"
    while True:
        token_id = _sample(state, sampling, len(output))
        output.append(token_id)
        logprobs += filter(None, [_logprobs(state, token_id, sampling)])
        if token_id in sampling.ending_token_ids and len(output) >= sampling.min_tokens:
            return output, logprobs, "stop"
        if len(output) >= sampling.max_tokens or len(tokens) + 1 >= context_tokens:
            return output, logprobs, "length"
        state = _absorb(state, _cell(token_id, len(tokens), state))
        tokens.append(token_id)


class _Slot:
    def __init__(self, new: NewSequence) -> None:
        self.tokens = array("q")
        self.tokens.frombytes(new.token_ids)
        self.num_prompt_tokens = new.num_prompt_tokens
        self.spans = new.spans
        self.sampling = new.sampling
        self.pooling = new.pooling
        self.num_prompt_rows = new.num_prompt_logprobs
        """Rows of prompt log-probabilities that were returned."""
        self.blocks: list[int] = []
        self.computed = 0
        self.num_known = 0
        """Tokens of the sequence and those that must follow, as reported."""
        self.has_failed = False
        self.is_deferred = False

    @property
    def prompt_only(self) -> bool:
        return self.pooling or not self.sampling.max_tokens


class FakeRank:
    """Executes step plans and checks that they can be executed.

    ``token_s``: the forward time that it reports for each token. ``max_new_tokens``: most tokens of one slot in one
    result; more than one, as with speculation, where the slot's blocks have room for their keys and values.
    ``max_forced_tokens``: most tokens that follow them without keys and values, as with grammars; how many these are
    differs from token to token.
    """

    def __init__(
        self,
        num_blocks: int,
        num_slots: int,
        max_tokens: int,
        token_s: float = 0.0,
        block_tokens: int = BLOCK_TOKENS,
        max_new_tokens: int = 1,
        max_forced_tokens: int = 0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.cells = [_GARBAGE] * (num_blocks * block_tokens)
        self.lost_items: set[int] = set()
        """Item ids whose embeddings are gone."""
        self.broken_seeds: set[int] = set()
        """Seeds of sequences that end in a numerical error."""
        self.num_pending: dict[int, int] = {}
        """Seed -> how many of the next sequences with it find their grammar not compiled yet."""
        self.num_tokens_computed = 0
        self._failed_last = False
        """A step of the last plan has failed; this plan may have been made before the result was known."""
        self._slots: dict[int, _Slot] = {}
        self._token_s = token_s
        self._num_slots = num_slots
        self._max_tokens = max_tokens
        self._max_new_tokens = max_new_tokens
        self._max_forced_tokens = max_forced_tokens

    @property
    def num_used_slots(self) -> int:
        return len(self._slots)

    def step(self, plan: StepPlan) -> StepResult:
        for slot in plan.free:
            del self._slots[slot]
        for new in plan.new:
            assert 0 <= new.slot < self._num_slots
            assert new.slot not in self._slots, "a slot must be freed before it is used again"
            self._slots[new.slot] = _Slot(new)
        assert len({step.slot for step in plan.steps}) == len(plan.steps)
        assert sum(step.num_tokens + len(step.draft) for step in plan.steps) <= self._max_tokens
        copied = [self._leading_cells(copy.source, copy.num_tokens) for copy in plan.copies]
        for copy, cells in zip(plan.copies, copied, strict=True):
            start = copy.target * self.block_tokens
            self.cells[start : start + copy.num_tokens] = cells
        tokens, forced, logprobs, failures, deferred = [], [], [], [], []
        self._prompt_rows: dict[int, bytes] = {}
        self._embeddings: dict[int, bytes] = {}
        for step in plan.steps:
            slot = self._slots[step.slot]
            slot.blocks += step.new_blocks
            assert len(set(slot.blocks)) == len(slot.blocks)
            slot.tokens.extend(step.token_ids)
            assert not step.token_ids or slot.has_failed or len(slot.tokens) == step.start + step.num_tokens
        for index, step in enumerate(plan.steps):
            outcome = self._compute(step, {later.slot for later in plan.steps[index + 1 :]})
            assert self._has_read_what_was_written(step) or failures or self._failed_last, (
                "a block is read that was not written"
            )
            if isinstance(outcome, SlotFailure):
                failures.append(outcome)
            elif outcome is not None and self._defers(self._slots[step.slot]):
                deferred.append(step.slot)
            elif outcome is not None:
                token_ids, packed = outcome
                tokens.append((step.slot, token_ids))
                if following := self._forced(self._slots[step.slot]):
                    forced.append((step.slot, following))
                logprobs += [(step.slot, packed)] if packed else []
        self._failed_last = bool(failures)
        return StepResult(
            step_id=plan.step_id,
            tokens=tuple(tokens),
            forced=tuple(forced),
            logprobs=tuple(logprobs),
            failures=tuple(failures),
            deferred=tuple(deferred),
            prompt_logprobs=tuple(self._prompt_rows.items()),
            embeddings=tuple(self._embeddings.items()),
            forward_s=self._token_s * sum(step.num_tokens + len(step.draft) for step in plan.steps),
        )

    def _defers(self, slot: _Slot) -> bool:
        seed = slot.sampling.seed
        if not slot.is_deferred and self.num_pending.get(seed, 0):
            self.num_pending[seed] -= 1
            slot.is_deferred = True
        return slot.is_deferred

    def _leading_cells(self, block: int, num_tokens: int) -> list[int]:
        assert 0 < num_tokens < self.block_tokens
        return self.cells[block * self.block_tokens : block * self.block_tokens + num_tokens]

    def _compute(
        self, step: SequenceStep, later: set[int]
    ) -> SlotFailure | tuple[tuple[int, ...], tuple[bytes, ...]] | None:
        """Computes one step. ``later``: slots whose steps follow in the same plan."""
        slot, end = self._slots[step.slot], step.start + step.num_tokens
        assert step.num_tokens > 0
        if slot.has_failed and end > len(slot.tokens):
            return SlotFailure(slot=step.slot, media_lost=False, message="beyond its tokens")
        assert step.start == slot.computed or not slot.computed, "computed tokens are not computed again"
        assert end <= min(len(slot.tokens), len(slot.blocks) * self.block_tokens)
        is_last = end == len(slot.tokens) and not slot.prompt_only
        assert step.sample == is_last or (is_last and end < slot.num_known), "only forced tokens may be still to come"
        last = end + len(step.draft) - 1
        assert last < len(slot.blocks) * self.block_tokens
        written = slot.blocks[step.start // self.block_tokens : last // self.block_tokens + 1]
        self._check_unread(step.slot, written, later)
        slot.computed = end
        self.num_tokens_computed += step.num_tokens
        failure = self._failure(step, slot)
        slot.has_failed = slot.has_failed or failure is not None
        state = 0
        for position in range(step.start):
            state = _absorb(state, self.cells[self._address(slot, position)])
        for position in range(step.start, end):
            cell = _GARBAGE if failure else _cell(slot.tokens[position], position, state)
            self.cells[self._address(slot, position)] = cell
            state = _absorb(state, cell)
            if not failure:
                self._report_prompt(step.slot, slot, position, state)
        if failure or not step.sample:
            return failure
        return self._verified(slot, state, step.draft) if step.draft else self._new_tokens(slot, state)

    def _verified(self, slot: _Slot, state: int, draft: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Computes the whole draft, then samples up to the first token that was not drafted."""
        first, drafted_state = len(slot.tokens), state
        for position, token_id in enumerate(draft, first):
            cell = _cell(token_id, position, drafted_state)
            self.cells[self._address(slot, position)] = cell
            drafted_state = _absorb(drafted_state, cell)
        token_ids: list[int] = []
        logprobs: list[bytes] = []
        for drafted in (*draft, None):
            position = len(slot.tokens)
            token_id = _sample(state, slot.sampling, position - slot.num_prompt_tokens)
            token_ids.append(token_id)
            logprobs += filter(None, [_logprobs(state, token_id, slot.sampling)])
            slot.tokens.append(token_id)
            if token_id != drafted:
                break
            state = _absorb(state, _cell(token_id, position, state))
            slot.computed += 1
        return tuple(token_ids), tuple(logprobs)

    def _report_prompt(self, number: int, slot: _Slot, position: int, state: int) -> None:
        """What the slot's sequence asks of its prompt, after the prompt's token at ``position``. Nobody reads it of a
        sequence that has failed: a plan launched ahead may go on behind the chunk that failed."""
        top, last = slot.sampling.prompt_logprobs, slot.num_prompt_tokens - 1
        if top is not None and not slot.has_failed and slot.num_prompt_rows <= position < last:
            assert position == slot.num_prompt_rows, "a row was left out"
            slot.num_prompt_rows += 1
            row = _prompt_row(state, slot.tokens[position + 1], top)
            self._prompt_rows[number] = self._prompt_rows.get(number, b"") + row
        if slot.pooling and position == last:
            self._embeddings[number] = _embedding(state)

    def _new_tokens(self, slot: _Slot, state: int) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
        """Sample tokens; compute all of them but the last, as far as the slot's blocks have room."""
        token_ids: list[int] = []
        logprobs: list[bytes] = []
        while True:
            token_id = _sample(state, slot.sampling, len(slot.tokens) - slot.num_prompt_tokens)
            token_ids.append(token_id)
            logprobs += filter(None, [_logprobs(state, token_id, slot.sampling)])
            position = len(slot.tokens)
            slot.tokens.append(token_id)
            if len(token_ids) == self._max_new_tokens or position >= len(slot.blocks) * self.block_tokens:
                return tuple(token_ids), tuple(logprobs)
            cell = _cell(token_id, position, state)
            self.cells[self._address(slot, position)] = cell
            state = _absorb(state, cell)
            slot.computed += 1

    def _forced(self, slot: _Slot) -> tuple[int, ...]:
        """Some of the tokens that the slot would sample next. They are not computed."""
        if not self._max_forced_tokens or slot.sampling.logprobs is not None:
            return ()
        state, tokens = 0, slot.tokens[:]
        for cell in cells_of(tokens):
            state = _absorb(state, cell)
        for _ in range(state % (self._max_forced_tokens + 1)):
            token_id = _sample(state, slot.sampling, len(tokens) - slot.num_prompt_tokens)
            state = _absorb(state, _cell(token_id, len(tokens), state))
            tokens.append(token_id)
        slot.num_known = max(slot.num_known, len(tokens))
        return tuple(tokens[len(slot.tokens) :])

    def _check_unread(self, writer: int, blocks: list[int], later: set[int]) -> None:
        """Asserts that only the writer, and sequences that start later in this step, have the written blocks."""
        for other, slot in self._slots.items():
            begins_later = other in later and not slot.computed
            assert other == writer or begins_later or not set(blocks) & set(slot.blocks), (
                "a block is written while another reads it"
            )

    def _has_read_what_was_written(self, step: SequenceStep) -> bool:
        """True if all cells before the chunk are those of the sequence's own tokens."""
        slot = self._slots[step.slot]
        found = [self.cells[self._address(slot, position)] for position in range(step.start)]
        return found == cells_of(slot.tokens[: step.start])

    def _failure(self, step: SequenceStep, slot: _Slot) -> SlotFailure | None:
        end = step.start + step.num_tokens
        for span in slot.spans:
            overlaps = span.start < end and step.start < span.start + span.num_tokens
            if overlaps and span.item_id in self.lost_items:
                return SlotFailure(slot=step.slot, media_lost=True, message="stale handle")
        if slot.sampling.seed in self.broken_seeds:
            return SlotFailure(slot=step.slot, media_lost=False, message="not a number")
        return None

    def _address(self, slot: _Slot, position: int) -> int:
        return slot.blocks[position // self.block_tokens] * self.block_tokens + position % self.block_tokens


STOP_PLAN = StepPlan(step_id=-1)
"""Ends ``serve_rank``."""


def serve_rank(endpoints: Endpoints, rank: int, fake: FakeRank) -> None:
    """Serves as rank ``rank`` on real sockets until STOP_PLAN arrives."""
    inbox: LockstepReceiver[RankInbound] = LockstepReceiver(endpoints.rank(rank), StepPlan)
    results: LockstepSender[RankOutbound] = LockstepSender(endpoints.rank_results, RankOutbound)
    try:
        if rank == 0:
            results.send(RankReady(num_blocks=fake.num_blocks, block_tokens=fake.block_tokens))
        step_ids = itertools.count(1)
        plans = itertools.chain.from_iterable(iter(lambda: inbox.drain(block=True), []))
        for plan in itertools.takewhile(lambda plan: plan != STOP_PLAN, plans):
            assert plan.step_id == next(step_ids)
            result = fake.step(plan)
            if rank == 0 and plan.steps:
                results.send(result)
    finally:
        inbox.close()
        results.close()
