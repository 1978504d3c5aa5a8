"""The drafts of one sequence: what followed its last tokens earlier, and how often such drafts were right.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Container

from mmserve.router.speculation.ngram_index import NgramIndex, continuation

MAX_DRAFT_TOKENS = 16
_FIRST_DRAFT_TOKENS = 4
"""The longest draft after one of which nothing was accepted. It grows by what is accepted."""
_TEXT_IDS = 1 << 31
"""Ids from here on stand for the content of images, which no sequence samples."""
_WEIGHT = 0.15
_UNUSED_SHARE, _UNUSED_WEIGHT = 0.5, 1 / 128
"""What the probability of drafts that are not computed rises to, and how fast: they are tried again after a while,
since a text may begin to repeat itself at any place."""


class AcceptedShares:
    """The probability that a drafted token is accepted if those before it are, by the kind of match: moving averages.

    ``long``: the draft was found by the long n-gram.
    """

    def __init__(self, short: float, long: float, weight: float = _WEIGHT) -> None:
        self._shares = [short, long]
        self._weight = weight

    def __getitem__(self, long: bool) -> float:
        return self._shares[long]

    def observe(self, *, long: bool, num_drafted: int, num_accepted: int) -> None:
        """Records one draft. Tokens after the first refused one say nothing."""
        share = self._shares[long]
        kept = (1.0 - self._weight) ** num_accepted
        share = 1.0 - (1.0 - share) * kept
        if num_accepted < num_drafted:
            share -= self._weight * share
        self._shares[long] = share

    def observe_unused(self, *, long: bool) -> None:
        """A draft was found and not computed."""
        self._shares[long] += _UNUSED_WEIGHT * max(0.0, _UNUSED_SHARE - self._shares[long])


class DraftSource:
    """Owns the n-gram index of one sequence."""

    def __init__(self, prior: AcceptedShares) -> None:
        """``prior``: the shares of other sequences."""
        self.shares = AcceptedShares(prior[False], prior[True])
        self.is_long = False
        """The last draft was found by the long n-gram."""
        self._index = NgramIndex()
        self._max_tokens = _FIRST_DRAFT_TOKENS

    def draft(self, tokens: array[int], ending_token_ids: Container[int], max_tokens: int) -> list[int]:
        """Tokens that may follow ``tokens``, the whole sequence; empty if its end stands nowhere else.

        It ends before a token that would end the sequence.
        """
        if not self._index.update(tokens) or (found := self._index.find(tokens)) is None:
            return []
        place, self.is_long = found
        draft: list[int] = []
        for token_id in continuation(tokens, place, min(max_tokens, self._max_tokens)):
            if token_id >= _TEXT_IDS or token_id in ending_token_ids:
                break
            draft.append(token_id)
        return draft

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """The last draft, perhaps shortened, was verified."""
        self.shares.observe(long=self.is_long, num_drafted=num_drafted, num_accepted=num_accepted)
        self._max_tokens = min(MAX_DRAFT_TOKENS, _FIRST_DRAFT_TOKENS + 2 * num_accepted)
