"""Keeps the output of sequences within their grammars: bans the tokens that a grammar does not allow next, and finds
those that it forces.

A grammar is compiled in a thread from the moment its sequence arrives. If a row is sampled before that is done, it gets
GRAMMAR_PENDING in place of a token and the router starts the sequence again, so that other sequences never wait.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field

import llguidance.numpy as bitmasks
import torch
from llguidance import LLExecutor, LLMatcher

from mmserve.model_backend.platforms.sampling import TokenSampling
from mmserve.model_backend.worker.sampling.grammar_compiler import GrammarCompiler, PendingMatcher

GRAMMAR_FAILED, GRAMMAR_PENDING = -4, -5
"""In place of a token id."""
_MAX_WAIT_S = 0.005
"""Wait for a grammar if all rows that are sampled wait for theirs: without it the router would plan step after step."""
_MIN_PARALLEL_MASKS = 32
"""Fewer masks are made one after another: handing 16 of them to threads took longer than making them."""
logger = logging.getLogger(__name__)


@dataclass
class _Slot:
    pending: PendingMatcher
    matcher: LLMatcher | None = None
    """Once it is compiled."""
    new_tokens: list[int] = field(default_factory=list)
    """Tokens of the sequence that the matcher has not consumed yet."""
    may_force: bool = False
    """The sequence may be given forced tokens."""
    forced: deque[int] = field(default_factory=deque)
    """Given by ``force``, and not yet tokens of the sequence."""
    has_mask: bool = False
    """True: the slot's row of the masks is that of the next token."""
    lost: int = 0
    """GRAMMAR_FAILED or GRAMMAR_PENDING, which the slot gets from then on. 0: neither."""


class GrammarMasks:
    """The matchers of a rank's slots and the masks of their next tokens. Costs nothing while no slot has a grammar."""

    def __init__(
        self,
        compiler: GrammarCompiler,
        vocab_size: int,
        sampling: TokenSampling,
        threads: int = 1,
        *,
        jumps: bool = True,
    ) -> None:
        """``jumps``: ``force`` may return tokens."""
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._sampling = sampling
        self._threads = threads
        self._jumps = jumps
        self._executor: LLExecutor | None = None
        self._slots: dict[int, _Slot] = {}
        self._masks = bitmasks.allocate_token_bitmask(0, vocab_size)
        """By slot: see ``TokenSampling.ban``."""

    @property
    def active(self) -> bool:
        """Some slot has a grammar."""
        return bool(self._slots)

    def add_slot(self, slot: int, grammar: str, output: Sequence[int], *, may_force: bool = False) -> None:
        """A sequence with a grammar enters a free slot, with the output that it has already.

        ``may_force``: ``force`` may return tokens for it.
        """
        self._slots[slot] = _Slot(self._compiler.start(grammar, output), may_force=may_force and self._jumps)
        if slot >= len(self._masks):
            masks = bitmasks.allocate_token_bitmask(2 * slot + 1, self._vocab_size)
            masks[: len(self._masks)] = self._masks
            self._masks = masks

    def remove_slot(self, slot: int) -> None:
        """Forget the slot, which may have no grammar."""
        if removed := self._slots.pop(slot, None):
            removed.pending.future.cancel()

    def has(self, slot: int) -> bool:
        """True if the slot has a grammar, so that ``update`` must be called before it is sampled again."""
        return slot in self._slots

    def update(self, slot: int, token_ids: Sequence[int]) -> None:
        """The slot's sequence got these tokens."""
        if (state := self._slots.get(slot)) is not None:
            state.new_tokens.extend(token_ids)
            state.has_mask = False
            for _ in range(min(len(token_ids), len(state.forced))):
                state.forced.popleft()

    def force(self, slot: int) -> tuple[int, ...]:
        """The next tokens of the slot, if its grammar allows no others: the tokenizer's own for the text to come.

        Empty if there are none, or if the last ones that were returned are not all tokens of the sequence yet.
        """
        state = self._slots.get(slot)
        if state is None or not state.may_force or state.forced or (matcher := _advanced(state)) is None:
            return ()
        state.forced.extend(matcher.compute_ff_tokens())
        return tuple(state.forced)

    def prepare(self) -> None:
        """Make the masks of the next tokens, so far as they are known. ``apply`` then has little left to do."""
        self._make_masks(self._slots)

    def apply(self, logits: torch.Tensor, slots: Sequence[int]) -> dict[int, int]:
        """Ban tokens in float32 logits [S, vocab]; row i belongs to ``slots[i]``.

        Returns row -> GRAMMAR_FAILED or GRAMMAR_PENDING for the rows that get no token.
        """
        rows = [row for row, slot in enumerate(slots) if slot in self._slots]
        without_token: dict[int, int] = {}
        if not all(self._slots[slots[row]].has_mask for row in rows):  # ``prepare`` has made all of them otherwise
            without_token = self._make_last_masks(rows, slots)
            rows = [row for row in rows if row not in without_token]
        if rows:
            self._sampling.ban(logits, rows, torch.from_numpy(self._masks[[slots[row] for row in rows]]))
        return without_token

    def _make_last_masks(self, rows: Sequence[int], slots: Sequence[int]) -> dict[int, int]:
        """Make the masks that these rows miss. Returns what ``apply`` returns."""
        states = [self._slots[slots[row]] for row in rows]
        if len(rows) == len(slots):
            _wait(states)
        self._make_masks([slots[row] for row in rows])
        for state in states:
            if state.matcher is None and not state.lost:
                state.lost = GRAMMAR_PENDING
        return {row: state.lost for row, state in zip(rows, states, strict=True) if state.lost}

    def _make_masks(self, slots: Iterable[int]) -> None:
        stale = [
            (matcher, slot)
            for slot in slots
            if not (state := self._slots[slot]).has_mask and (matcher := _advanced(state)) is not None
        ]
        if len(stale) >= _MIN_PARALLEL_MASKS and self._threads > 1:
            self._executor = self._executor or LLExecutor(self._threads)
            bitmasks.fill_next_token_bitmask_par(self._executor, stale, self._masks)
        elif stale:
            address, row_nbytes = self._masks.ctypes.data, self._masks.strides[0]
            for matcher, slot in stale:
                matcher.unsafe_compute_mask_ptr(address + slot * row_nbytes, row_nbytes)
        for matcher, slot in stale:
            self._slots[slot].has_mask = True
            if matcher.is_error():
                _fail(self._slots[slot], matcher.get_error())


def _wait(states: Sequence[_Slot]) -> None:
    waiting = [state.pending.future for state in states if state.matcher is None and not state.lost]
    if waiting and len(waiting) == len(states):
        wait(waiting, _MAX_WAIT_S, FIRST_COMPLETED)


def _advanced(state: _Slot) -> LLMatcher | None:
    """The slot's matcher, after all tokens of the sequence; None if it has none yet or has failed."""
    if state.lost or (matcher := _compiled(state)) is None:
        return None
    tokens, state.new_tokens = state.new_tokens, []
    for token_id in tokens:
        if not matcher.consume_token(token_id):
            _fail(state, matcher.get_error())
            return None
    return matcher


def _compiled(state: _Slot) -> LLMatcher | None:
    if state.matcher is None:
        future = state.pending.future
        if not future.done():
            if time.monotonic() >= state.pending.give_up_s:
                _fail(state, "it is not compiled in time")
        elif (error := future.exception()) is not None:
            _fail(state, str(error))
        else:
            state.matcher = future.result()
    return state.matcher


def _fail(state: _Slot, reason: str) -> None:
    state.lost, state.has_mask = GRAMMAR_FAILED, False
    logger.warning("a grammar could not be followed: its sequence ends with an error")
    logger.debug("the grammar's error: %s", reason)  # it may quote the answer
