"""Decides which sequences of a step get drafts, and how long ones: those by which the step brings more tokens a second.

What is learned: the time of steps by their rows, and how often drafts are right. Pure: no clock, no I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable
from itertools import islice
from typing import Protocol, TypeVar

from mmserve.router.speculation.draft_source import AcceptedShares, DraftSource
from mmserve.router.speculation.step_costs import StepCosts

_MIN_GAIN = 1.08
"""Drafts must be expected to bring so many times the tokens a second. The rest covers what the averages do not know,
and that a batch ends with its slowest sequence while drafts help some more than others."""
_MIN_CHANCE = 0.05
"""Tokens less likely to be right are left out, however cheap their rows seem."""
_MAX_SEQUENCES = 32
"""The oldest sequences of a step, which alone get drafts: looking for one takes a few microseconds."""
_FEWEST_STEPS_TO_TRIAL, _MOST_STEPS_TO_TRIAL = 4, 64
"""After so many steps with drafts one is computed without, so that the time of those stays known: the more drafts are
expected to gain, the fewer, as each costs what they gain."""
_SHORT_SHARE, _LONG_SHARE, _PRIOR_WEIGHT = 0.5, 0.8, 0.02


class Decoding(Protocol):
    """A sequence that decodes."""

    tokens: array[int]
    draft_source: DraftSource | None

    @property
    def ending_token_ids(self) -> Container[int]: ...

    @property
    def max_draft_tokens(self) -> int: ...


S = TypeVar("S", bound=Decoding)
Offer = tuple[S, DraftSource, list[int]]
"""A sequence and its draft."""


class Drafter:
    """Proposes tokens for the sequences of steps that only decode. Owns what is learned of all of them."""

    def __init__(self) -> None:
        self._costs = StepCosts()
        self._prior = AcceptedShares(_SHORT_SHARE, _LONG_SHARE, _PRIOR_WEIGHT)
        self._num_with_drafts = 0
        """Steps since the last one without."""
        self._gain = 1.0
        """How many times the tokens a second the last drafts were expected to bring."""

    def drafts(self, decoding: list[S]) -> dict[S, tuple[int, ...]]:
        """Drafts of at least one token for some of the sequences, all that a step computes."""
        offers = list(self._offers(decoding))
        if not offers:
            return {}
        lengths = self._best_lengths(offers, len(decoding))
        self._num_with_drafts = self._num_with_drafts + 1 if any(lengths) else 0
        most = _MOST_STEPS_TO_TRIAL * (self._gain - 1.0)
        if self._num_with_drafts > min(max(most, _FEWEST_STEPS_TO_TRIAL), _MOST_STEPS_TO_TRIAL):
            self._num_with_drafts = 0
            return {}
        drafts = {}
        for (sequence, source, draft), length in zip(offers, lengths, strict=True):
            if length:
                drafts[sequence] = tuple(draft[:length])
            else:
                source.shares.observe_unused(long=source.is_long)
        return drafts

    def observe_step(self, num_sequences: int, num_draft_tokens: int, seconds: float) -> None:
        """The ranks have computed a step that only decodes. 0 seconds: unknown."""
        self._costs.observe(num_sequences + num_draft_tokens, seconds)

    def observe_draft(self, source: DraftSource, num_drafted: int, num_accepted: int) -> None:
        """The first ``num_accepted`` tokens of the source's last draft were right."""
        self._prior.observe(long=source.is_long, num_drafted=num_drafted, num_accepted=num_accepted)
        source.observe(num_drafted, num_accepted)

    def _offers(self, decoding: list[S]) -> Iterable[Offer[S]]:
        for sequence in islice(decoding, _MAX_SEQUENCES):
            if (max_tokens := sequence.max_draft_tokens) <= 0:
                continue
            if (source := sequence.draft_source) is None:
                source = sequence.draft_source = DraftSource(self._prior)
            if draft := source.draft(sequence.tokens, sequence.ending_token_ids, max_tokens):
                yield sequence, source, draft

    def _best_lengths(self, offers: list[Offer[S]], num_sequences: int) -> list[int]:
        """How much of each draft the step should compute: the tokens most likely to be right, as long as they pay."""
        chances = [each for each in _chances(offers) if each[0] >= _MIN_CHANCE]
        plain_s, *seconds = self._costs.seconds(num_sequences, len(chances)) or (0.0,)
        plain_rate = num_sequences / plain_s if plain_s else 0.0
        best, best_rate = 0, _MIN_GAIN * plain_rate
        expected = float(num_sequences)
        for num_tokens, ((chance, _), step_s) in enumerate(zip(chances, seconds, strict=False), 1):
            expected += chance
            if expected / step_s > best_rate:
                best, best_rate = num_tokens, expected / step_s
        self._gain = best_rate / plain_rate if plain_rate else 1.0
        lengths = [0] * len(offers)
        for _, index in chances[:best]:
            lengths[index] += 1
        return lengths


def _chances(offers: list[Offer[S]]) -> list[tuple[float, int]]:
    """(probability that it and those before it are right, index of its offer) of each token, the most likely first."""
    return sorted(
        (
            (source.shares[source.is_long] ** place, index)
            for index, (_, source, draft) in enumerate(offers)
            for place in range(1, len(draft) + 1)
        ),
        reverse=True,
    )
