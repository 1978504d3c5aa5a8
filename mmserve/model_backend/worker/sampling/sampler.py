"""Logits -> token ids for a batch of sequences, each by its own parameters. Runs on rank 0.

Bans what grammars do not allow, then applies the logits processors; the platform's ``TokenSampling`` then chooses. A
row's token depends only on its logits, parameters, seed and position.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.sampling import SamplingParams
from mmserve.model_backend.platforms.sampling import GREEDY, NO_TOKEN_ALLOWED, NOT_FINITE, Draw, TokenSampling
from mmserve.model_backend.transfers import Transfers
from mmserve.model_backend.worker.sampling.counter_random import random_key
from mmserve.model_backend.worker.sampling.grammar_masks import GRAMMAR_FAILED, GrammarMasks
from mmserve.model_backend.worker.sampling.logits_processors import Int64s, LogitsProcessor, make_processors

PROCESSOR_FAILED = -3
"""In place of a token id, like NOT_FINITE and NO_TOKEN_ALLOWED: the row has no token."""
FAILURES = {
    NOT_FINITE: "the model's output is not finite",
    NO_TOKEN_ALLOWED: "no token is allowed: the request's parameters ban all of them",
    PROCESSOR_FAILED: "internal error: a logits processor failed",
    GRAMMAR_FAILED: "the grammar that the answer must fit could not be followed",
}
_GREEDY_BELOW = 1e-5


class SampleRow(NamedTuple):
    """One sequence about to get a token."""

    slot: int
    sampling: SamplingParams
    position: int
    """Index in the sequence of the token to come."""


class Sampler:
    """Samples tokens and owns the logits processors, whose state it keeps for each slot.

    ``grammars``: None where no sequence has a grammar. ``image_token_id``: what processors see for each image row, as
    penalties are defined on prompts that have this token there.
    """

    def __init__(
        self,
        vocab_size: int,
        sampling: TokenSampling,
        transfers: Transfers,
        grammars: GrammarMasks | None = None,
        image_token_id: int | None = None,
    ) -> None:
        self._sampling, self._transfers = sampling, transfers
        self._image_token_id = image_token_id
        self._grammars = grammars
        self._processors = make_processors(vocab_size, transfers)
        self._to_update: dict[int, list[LogitsProcessor]] = {}
        self._failed: set[int] = set()
        """Slots that get no token, because a processor failed in ``add_slot``."""

    def add_slot(self, slot: int, sampling: SamplingParams, prompt: Int64s, output: Int64s) -> None:
        """A sequence enters the slot; what an earlier one left there is forgotten."""
        self.remove_slot(slot)
        if self._image_token_id is not None:
            prompt = np.where(prompt < FIRST_VIRTUAL_TOKEN, prompt, self._image_token_id)
        if updated := [each for each in self._processors if each.add_slot(slot, sampling, prompt, output)]:
            self._to_update[slot] = updated
        if sampling.grammar and self._grammars is not None:
            self._grammars.add_slot(slot, sampling.grammar, output.tolist(), may_force=_may_force(sampling))

    def fail_slot(self, slot: int) -> None:
        """``add_slot`` has raised: the slot gets PROCESSOR_FAILED in place of every token, until it is removed."""
        self.remove_slot(slot)
        self._failed.add(slot)

    def remove_slot(self, slot: int) -> None:
        """The slot's sequence has left."""
        self._to_update.pop(slot, None)
        self._failed.discard(slot)
        for processor in self._processors:
            processor.remove_slot(slot)
        if self._grammars is not None:
            self._grammars.remove_slot(slot)

    def update(self, slot: int, token_ids: Sequence[int]) -> None:
        """The slot's sequence got these tokens."""
        for processor in self._to_update.get(slot, ()):
            processor.update(slot, token_ids)
        if self._grammars is not None:
            self._grammars.update(slot, token_ids)

    def needs_update(self, slot: int) -> bool:
        """True if ``update`` must be called with the slot's last tokens before it is sampled again."""
        return slot in self._to_update or (self._grammars is not None and self._grammars.has(slot))

    def forced_tokens(self, slots: Iterable[int]) -> list[tuple[int, tuple[int, ...]]]:
        """(slot, the tokens that must come next) for those of ``slots`` that have more than they were told before."""
        if self._grammars is None or not self._grammars.active:
            return []
        return [(slot, token_ids) for slot in slots if (token_ids := self._grammars.force(slot))]

    def prepare(self) -> None:
        """Do what the next ``sample`` needs and what depends only on tokens that are known already."""
        if self._grammars is not None and self._grammars.active:
            self._grammars.prepare()

    @property
    def changes_logits(self) -> bool:
        """Some slot has a processor or a grammar, or gets no token. Else tokens follow from ``draw_of`` alone."""
        with_grammar = self._grammars is not None and self._grammars.active
        return with_grammar or bool(self._failed) or any(processor.active for processor in self._processors)

    def sample(self, logits: torch.Tensor, rows: Sequence[SampleRow]) -> torch.Tensor:
        """[S, vocab] and their rows -> int64 [S]: token ids, keys of FAILURES or GRAMMAR_PENDING.

        May change ``logits``.
        """
        logits = logits.float()
        slots = [row.slot for row in rows]
        draws = [draw_of(row.sampling, row.position) for row in rows]
        grammars = self._grammars if self._grammars is not None and self._grammars.active else None
        active = [processor for processor in self._processors if processor.active]
        without_token: dict[int, int] = {}
        if active or grammars:
            finite = self._sampling.finite(logits)
            if grammars:  # first: no bias brings back what a grammar has banned
                without_token = grammars.apply(logits, slots)
            for processor in active:
                processor.apply(logits, slots)
            chosen = self._sampling.choose(logits, draws, may_ban=True).masked_fill_(~finite, NOT_FINITE)
        else:
            chosen = self._sampling.choose(logits, draws, may_ban=False)
        for row, code in without_token.items():
            chosen[row] = code
        if self._failed:
            failed = self._transfers.to_device(torch.tensor([slot in self._failed for slot in slots]))
            chosen.masked_fill_(failed, PROCESSOR_FAILED)
        return chosen


def _may_force(sampling: SamplingParams) -> bool:
    """True if a sequence with a grammar may skip sampling where the grammar leaves one choice: nothing is reported of
    the logits, and no other parameter can ban that choice, which is an error."""
    return sampling.logprobs is None and not sampling.allowed_token_ids and not sampling.bad_words


def draw_of(params: SamplingParams, position: int) -> Draw:
    """How the token to come is drawn. ``position``: its index in the sequence."""
    if params.temperature < _GREEDY_BELOW:
        return GREEDY
    return Draw(params.temperature, params.top_k, params.top_p, params.min_p, random_key(params.seed, position))
