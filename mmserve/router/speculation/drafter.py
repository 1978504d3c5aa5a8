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
compute more is behind: one at a time catches up."""


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
        drafts = self._chosen(offers, decoding)
        self._num_with_drafts = self._num_with_drafts + 1 if drafts else 0
        most = _MOST_STEPS_TO_TRIAL * (self._gain - 1.0)
        if self._num_with_drafts > min(max(most, _FEWEST_STEPS_TO_TRIAL), _MOST_STEPS_TO_TRIAL):
            self._num_with_drafts = 0
            return {}
        return drafts

    def _chosen(self, offers: list[Offer[S]], decoding: list[S]) -> dict[S, Draft]:
        """What the step should compute of the drafts, by what is known."""
        lengths = self._best_lengths(offers, len(decoding))
        for (_, source, _), length in zip(offers, lengths, strict=True):
            if not length:
                source.shares.observe_unused(source.kind)
        catching_up = self._catching_up(offers, decoding) if any(lengths) else None
        ready = [offer for offer in offers if offer is catching_up or _num_behind(offer) <= _FEW_BEHIND]
        if len(ready) < len(offers):  # the passes of the draft model are for fewer sequences
            lengths = self._best_lengths(ready, len(decoding))
        drafts = _shortened(ready, lengths)
        if self._is_unfair(drafts, decoding):
            ready = [offer for offer in ready if offer[2].token_ids]
            drafts = _shortened(ready, self._best_lengths(ready, len(decoding)))
        if catching_up is not None:
            sequence, _, draft = catching_up
            drafts.setdefault(sequence, draft.first(1))
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
            source.saved_s += num_accepted * plain_s[0]
            self._allowance.gain(num_accepted * plain_s[0] / self._num_sequences)

    def _offers(self, decoding: list[S]) -> Iterable[Offer[S]]:
        may_use_model = len(decoding) <= _MAX_SEQUENCES and self._allowance.allows_drafts
        for sequence in islice(decoding, _MAX_SEQUENCES):
            if (source := sequence.draft_source) is None:
                source = sequence.draft_source = DraftSource(self._prior)
                source.saved_s = -self._allowance.of_each_s
            if (max_tokens := sequence.max_draft_tokens) <= 0:
                continue
            source.num_steps_behind += 1
            tokens = sequence.tokens
            if self._ngrams and (found := source.draft(tokens, sequence.ending_token_ids, max_tokens)):
                yield sequence, source, Draft(len(found), tuple(found))
                continue
            max_tokens = min(max_tokens, self._model_context - len(tokens) - 1)
            if max_tokens > 0 and may_use_model and not sequence.largest_image_tokens:
                yield sequence, source, source.proposal(max_tokens)

    def _catching_up(self, offers: list[Offer[S]], decoding: list[S]) -> Offer[S] | None:
        """The sequence of which the draft model computes what it has not in this step."""
        behind = [offer for offer in offers if _num_behind(offer) > _FEW_BEHIND]
        if not behind or (len(decoding) > 1 and len(offers) < len(decoding)):
            return None
        catch_up_s = sum(map(_num_behind, behind)) * self._proposal_costs.row_s
        for offer in behind:
            if self._pays_catch_up(catch_up_s, offer[1], decoding):
                offer[1].is_catching_up = True
                return offer
        return None

    def _pays_catch_up(self, catch_up_s: float, source: DraftSource, decoding: list[S]) -> bool:
        """True if the drafts of this step are expected to save the time until all have caught up, were the sequence to
        go on as long as it has since its tokens were computed, and if each can lose as much. What was begun is
        completed."""
        if source.is_catching_up:
            return True
        (plain_s,) = self._costs.seconds(len(decoding))
        saved_s = (1.0 - 1.0 / self._gain) * plain_s * source.num_steps_behind
        if catch_up_s > saved_s or not self._allowance.takes_catch_up(catch_up_s):
            return False
        return len(decoding) == 1 or all(
            catch_up_s <= self._balance_s(each) + self._allowance.ahead_s(each.max_draft_tokens) for each in decoding
        )

    def _is_unfair(self, drafts: dict[S, Draft], decoding: list[S]) -> bool:
        """True if the draft model's drafts of some cost others more than those may lose."""
        if len(drafts) == len(decoding) or all(draft.token_ids for draft in drafts.values()):
            return False
        return any(self._balance_s(each) < 0.0 for each in decoding if each not in drafts)

    def _balance_s(self, sequence: S) -> float:
        """What drafts of other sequences may still cost this one."""
        source = sequence.draft_source
        return self._allowance.of_each_s + source.saved_s if source is not None else 0.0

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


def _num_behind(offer: Offer[S]) -> int:
    """Tokens that the draft model has to compute first."""
    sequence, source, draft = offer
    return 0 if draft.token_ids else len(sequence.tokens) - source.num_modelled


def _shortened(offers: list[Offer[S]], lengths: list[int]) -> dict[S, Draft]:
    """The drafts that have a length."""
    return {
        sequence: draft.first(length) for (sequence, _, draft), length in zip(offers, lengths, strict=True) if length
    }


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
