"""Decides which sequences of a step get drafts, and how long ones: those by which the step brings more tokens a second.

What is learned: the time of steps by their rows, that of the draft model, and how often drafts are right. Pure: no
clock, no I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Iterable
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

from mmserve.messages.step import UNKNOWN_TIMES, DraftTimes
from mmserve.router.speculation.allowance import Allowance
from mmserve.router.speculation.draft_source import AcceptedShares, Draft, DraftSource, Kind
from mmserve.router.speculation.proposal_costs import ProposalCosts
from mmserve.router.speculation.step_costs import StepCosts

_MIN_GAIN = 1.08
"""Drafts must be expected to bring so many times the tokens a second. The rest covers what the averages do not know,
and that a batch ends with its slowest sequence while drafts help some more than others."""
_MIN_MODEL_GAIN = 1.2
"""The same where a draft model makes some of them: it also computes prompts for that."""
_MIN_CHANCE = 0.05
"""Tokens less likely to be right are left out, however cheap their rows seem."""
_MAX_SEQUENCES = 32
"""The oldest sequences of a step, which alone get drafts: looking for one takes a few microseconds."""
_FEWEST_STEPS_TO_TRIAL, _MOST_STEPS_TO_TRIAL = 4, 64
"""After so many steps with drafts one is computed without, so that the time of those stays known: the more drafts are
expected to gain, the fewer, as each costs what they gain."""
_SHORT_SHARE, _LONG_SHARE, _MODEL_SHARE, _PRIOR_WEIGHT = 0.5, 0.8, 0.6, 0.05
_FEW_BEHIND = 16
"""So many tokens the draft model may have to compute before a draft, whatever they cost. A sequence of which it has to
compute more is behind: one at a time catches up, so that the others know by then what drafts gain."""


class Decoding(Protocol):
    """A sequence that decodes."""

    tokens: array[int]
    draft_source: DraftSource | None
    largest_image_tokens: int
    """0: it has no pictures."""

    @property
    def ending_token_ids(self) -> Container[int]: ...

    @property
    def max_draft_tokens(self) -> int: ...


S = TypeVar("S", bound=Decoding)
Offer = tuple[S, DraftSource, Draft]
"""A sequence and its draft."""


class _DraftToken(NamedTuple):
    """A token that the step may compute."""

    chance: float
    """Probability that it and those before it are right."""
    offer: int
    """Its index."""
    place: int
    """In its draft, from 1 on."""


class Drafter:
    """Proposes tokens for the sequences of steps that only decode. Owns what is learned of all of them.

    ``ngrams``: drafts are what followed the same tokens before. ``model_context``: a draft model proposes tokens for
    text of up to so many tokens where there are none of these; 0: there is no draft model. ``draft_times``: of it.
    """

    def __init__(self, *, ngrams: bool = True, model_context: int = 0, draft_times: DraftTimes = UNKNOWN_TIMES) -> None:
        self._ngrams, self._model_context = ngrams, model_context
        self._costs = StepCosts()
        self._proposal_costs = ProposalCosts(draft_times)
        self._allowance = Allowance()
        self._num_proposed = 0
        """Tokens of the draft model in the step that is observed next."""
        self._num_sequences = 1
        """Of the last step."""
        self._prior = AcceptedShares(_SHORT_SHARE, _LONG_SHARE, _MODEL_SHARE, _PRIOR_WEIGHT)
        self._num_with_drafts = 0
        """Steps since the last one without."""
        self._gain = 1.0
        """How many times the tokens a second the last drafts were expected to bring."""

    def drafts(self, decoding: list[S]) -> dict[S, Draft]:
        """Drafts of at least one token for some of the sequences, all that a step computes."""
        self._num_sequences = max(1, len(decoding))
        offers = list(self._offers(decoding))
        if not offers:
            return {}
        lengths = self._best_lengths(offers, len(decoding))
        self._num_with_drafts = self._num_with_drafts + 1 if any(lengths) else 0
        most = _MOST_STEPS_TO_TRIAL * (self._gain - 1.0)
        if self._num_with_drafts > min(max(most, _FEWEST_STEPS_TO_TRIAL), _MOST_STEPS_TO_TRIAL):
            self._num_with_drafts = 0
            return {}
        drafts, is_any_behind = {}, False
        for (sequence, source, draft), length in zip(offers, lengths, strict=True):
            if not length:
                source.shares.observe_unused(source.kind)
                continue
            if not draft.token_ids and (num_behind := len(sequence.tokens) - source.num_modelled) > _FEW_BEHIND:
                if is_any_behind or not self._pays_catch_up(num_behind, source, len(decoding)):
                    continue
                is_any_behind = source.is_catching_up = True
            drafts[sequence] = draft.first(length)
        return drafts

    def observe_step(self, num_sequences: int, num_draft_tokens: int, seconds: float) -> None:
        """The ranks have computed a step that only decodes, apart from its drafts. 0 seconds: unknown."""
        self._costs.observe(num_sequences + num_draft_tokens, seconds)
        plain_s, *more_s = self._costs.seconds(num_sequences, num_draft_tokens) or (0.0,)
        self._allowance.observe_step(seconds, plain_s)
        if self._num_proposed and more_s:
            others = num_draft_tokens - self._num_proposed
            self._allowance.gain((plain_s if others <= 0 else more_s[others - 1]) - more_s[-1])
        self._num_proposed = 0

    def observe_proposals(self, lengths: list[int], num_rows: int, seconds: float) -> None:
        """The draft model has made drafts of these lengths. ``num_rows``: of its first pass."""
        num_passes = max(1, *lengths)
        missed_s = self._proposal_costs.observe(len(lengths), num_passes, num_rows, seconds)
        self._allowance.pay_catch_up(missed_s)
        if any(lengths):  # not only what was missing of the sequences
            self._allowance.gain(-num_passes * self._proposal_costs.pass_seconds(len(lengths))[-1])
        self._num_proposed = sum(lengths)

    def observe_draft(self, source: DraftSource, num_drafted: int, num_accepted: int) -> None:
        """The first ``num_accepted`` tokens of the source's last draft were right."""
        self._prior.observe(source.kind, num_drafted=num_drafted, num_accepted=num_accepted)
        source.observe(num_drafted, num_accepted)
        if source.kind is Kind.MODEL and (plain_s := self._costs.seconds(self._num_sequences)):
            self._allowance.gain(num_accepted * plain_s[0] / self._num_sequences)

    def _offers(self, decoding: list[S]) -> Iterable[Offer[S]]:
        for sequence in islice(decoding, _MAX_SEQUENCES):
            if (max_tokens := sequence.max_draft_tokens) <= 0:
                continue
            if (source := sequence.draft_source) is None:
                source = sequence.draft_source = DraftSource(self._prior)
            source.num_steps_behind += 1
            tokens = sequence.tokens
            if self._ngrams and (found := source.draft(tokens, sequence.ending_token_ids, max_tokens)):
                yield sequence, source, Draft(len(found), tuple(found))
                continue
            max_tokens = min(max_tokens, self._model_context - len(tokens) - 1)
            if max_tokens > 0 and self._allowance.allows_drafts and not sequence.largest_image_tokens:
                yield sequence, source, source.proposal(max_tokens)

    def _pays_catch_up(self, num_behind: int, source: DraftSource, num_sequences: int) -> bool:
        """True if the drafts of this step are expected to save the time of so many tokens of the draft model, were the
        sequence to go on as long as it has since those before were computed, and all others to catch up too. What was
        begun is completed."""
        if source.is_catching_up:
            return True
        (plain_s,) = self._costs.seconds(num_sequences)
        saved_s = (1.0 - 1.0 / self._gain) * plain_s * source.num_steps_behind
        row_s = self._proposal_costs.row_s
        return num_sequences * num_behind * row_s <= saved_s and self._allowance.takes_catch_up(num_behind * row_s)

    def _best_lengths(self, offers: list[Offer[S]], num_sequences: int) -> list[int]:
        """How much of each draft the step should compute: the tokens most likely to be right, as long as they pay."""
        tokens = [each for each in _draft_tokens(offers) if each.chance >= _MIN_CHANCE]
        plain_s, *seconds = self._costs.seconds(num_sequences, len(tokens)) or (0.0,)
        pass_s = self._proposal_costs.pass_seconds(len(offers))
        num_passes = num_proposing = 0
        plain_rate = num_sequences / plain_s if plain_s else 0.0
        best, best_rate = 0, _MIN_GAIN * plain_rate
        expected = float(num_sequences)
        for num_tokens, (token, step_s) in enumerate(zip(tokens, seconds, strict=False), 1):
            expected += token.chance
            if not offers[token.offer][2].token_ids:
                num_passes, num_proposing = max(num_passes, token.place), num_proposing + (token.place == 1)
            draft_s = num_passes * pass_s[num_proposing - 1] if num_passes else 0.0
            rate = expected / (step_s + draft_s)
            if rate > max(best_rate, _MIN_MODEL_GAIN * plain_rate if num_passes else 0.0):
                best, best_rate = num_tokens, rate
        self._gain = best_rate / plain_rate if plain_rate else 1.0
        lengths = [0] * len(offers)
        for token in tokens[:best]:
            lengths[token.offer] += 1
        return lengths


def _draft_tokens(offers: list[Offer[S]]) -> list[_DraftToken]:
    """Those of all drafts, the most likely first."""
    return sorted(
        (
            _DraftToken(source.share**place, index, place)
            for index, (_, source, draft) in enumerate(offers)
            for place in range(1, draft.num_tokens + 1)
        ),
        key=lambda token: (-token.chance, token.place),
    )
