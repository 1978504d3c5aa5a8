"""The drafts of one sequence: what followed its last tokens earlier, or what a draft model will propose, and how often
such drafts were right.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Container
from enum import IntEnum
from typing import NamedTuple

from mmserve.router.speculation.ngram_index import NgramIndex, continuation

MAX_DRAFT_TOKENS = 16
_FIRST_DRAFT_TOKENS = 4
"""The longest draft after one of which nothing was accepted. It grows by what is accepted."""
_TEXT_IDS = 1 << 31
"""Ids from here on stand for the content of images, which no sequence samples."""
_WEIGHT = 0.15
_UNUSED_SHARE, _UNUSED_WEIGHT, _UNUSED_MODEL_WEIGHT = 0.5, 1 / 128, 1 / 1024
"""What the probability of drafts that are not computed rises to, and how fast: they are tried again after a while,
since a text may begin to repeat itself at any place. How good the draft model is changes less."""


class Kind(IntEnum):
    """Where a draft comes from: the short n-gram, the long one, or the draft model."""

    SHORT = 0
    LONG = 1
    MODEL = 2


class Draft(NamedTuple):
    """Proposed tokens; those of the draft model are known once it is computed, with the step."""

    num_tokens: int
    token_ids: tuple[int, ...] = ()
    """Empty: the draft model's."""

    def first(self, num_tokens: int) -> Draft:
        """At most so many tokens of it."""
        return Draft(min(num_tokens, self.num_tokens), self.token_ids[:num_tokens])


class AcceptedShares:
    """The probability that a drafted token is accepted if those before it are, by kind: moving averages."""

    def __init__(self, short: float, long: float, model: float, weight: float = _WEIGHT) -> None:
        self._shares = [short, long, model]
        self._weight = weight

    def __getitem__(self, kind: Kind) -> float:
        return self._shares[kind]

    def observe(self, kind: Kind, *, num_drafted: int, num_accepted: int) -> None:
        """Records one draft. Tokens after the first refused one say nothing."""
        share = self._shares[kind]
        kept = (1.0 - self._weight) ** num_accepted
        share = 1.0 - (1.0 - share) * kept
        if num_accepted < num_drafted:
            share -= self._weight * share
        self._shares[kind] = share

    def observe_unused(self, kind: Kind) -> None:
        """A draft could be had and was not computed."""
        weight = _UNUSED_MODEL_WEIGHT if kind is Kind.MODEL else _UNUSED_WEIGHT
        self._shares[kind] += weight * max(0.0, _UNUSED_SHARE - self._shares[kind])


class DraftSource:
    """Owns the n-gram index of one sequence."""

    def __init__(self, prior: AcceptedShares) -> None:
        """``prior``: the shares of other sequences."""
        self.shares = AcceptedShares(*(prior[kind] for kind in Kind))
        self._prior = prior
        self.kind = Kind.SHORT
        """Of the last draft."""
        self.num_modelled = 0
        """The draft model has computed so many of the sequence's tokens, as far as is known."""
        self.num_steps_behind = 0
        """Steps since it had computed all of them, or since the first."""
        self.is_catching_up = False
        """It computes many that it had not; False after a step in which it has failed."""
        self.saved_s = 0.0
        """By drafts of the draft model, less ``Allowance.of_each_s`` when this sequence began to decode."""
        self._index = NgramIndex()
        self._max_tokens = _FIRST_DRAFT_TOKENS

    def draft(self, tokens: array[int], ending_token_ids: Container[int], max_tokens: int) -> list[int]:
        """Tokens that may follow ``tokens``, the whole sequence; empty if its end stands nowhere else.

        It ends before a token that would end the sequence.
        """
        if not self._index.update(tokens) or (found := self._index.find(tokens)) is None:
            return []
        place, is_long = found
        self.kind = Kind.LONG if is_long else Kind.SHORT
        draft: list[int] = []
        for token_id in continuation(tokens, place, min(max_tokens, self._max_tokens)):
            if token_id >= _TEXT_IDS or token_id in ending_token_ids:
                break
            draft.append(token_id)
        return draft

    @property
    def share(self) -> float:
        """The probability that a token of the last draft is accepted if those before it are. What is known of the draft
        model from other sequences holds for this one too."""
        own = self.shares[self.kind]
        return own if self.kind is not Kind.MODEL else (own + self._prior[Kind.MODEL]) / 2

    def proposal(self, max_tokens: int) -> Draft:
        """A draft of the draft model."""
        self.kind = Kind.MODEL
        return Draft(min(max_tokens, self._max_tokens))

    def computed(self, num_tokens: int, num_missing: int) -> None:
        """The draft model has computed all but so many of the sequence's first ``num_tokens`` tokens."""
        num_modelled = num_tokens - num_missing
        self.is_catching_up = self.is_catching_up and num_missing > 0 and num_modelled > self.num_modelled
        self.num_modelled = num_modelled
        if not num_missing:
            self.num_steps_behind = 0

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """The last draft, perhaps shortened, was verified."""
        self.shares.observe(self.kind, num_drafted=num_drafted, num_accepted=num_accepted)
        self._max_tokens = min(MAX_DRAFT_TOKENS, _FIRST_DRAFT_TOKENS + 2 * num_accepted)
