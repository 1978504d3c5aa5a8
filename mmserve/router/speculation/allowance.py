"""Bounds what drafts of a model may lose. Pure: no clock, no I/O.

How often such drafts are right is learned from drafts alone, and each that is wrong costs more than a step, so a few
wrong ones are 3 % of a short answer, and the model must compute a prompt before the first. A part of the time that
decoding takes may be lost by each of both, and what right drafts save may be lost again.

What drafts of some sequences cost, all sequences of the step lose. So each has a balance too: a part of its own time,
and what its own drafts have saved, less what it has lost.
"""

from __future__ import annotations

_SHARE, _FIRST_STEPS = 0.01, 0.5
"""What wrong drafts may lose, and prompts as much again: this part of the time of steps, and first that of so many."""
_MOST_EARNED_STEPS, _MOST_FOR_PROMPTS_STEPS = 4.0, 32.0
"""At most the time of so many steps. A long prompt takes more than a few wrong drafts."""
_MOST_GAINED_STEPS = 8.0
"""What drafts save beyond is kept for prompts, so that a model that was good for other texts does not lose it all."""
_SHARE_OF_EACH, _STEPS_AHEAD = 0.02, 128
"""What a sequence may lose to others: this part of its steps, and of so many that it may still have."""


class Allowance:
    """Seconds that drafts may still lose."""

    def __init__(self) -> None:
        self._earned_s = self._gained_s = 0.0
        """By steps, and by drafts. What drafts lose beyond the latter is taken from the former."""
        self._for_prompts_s = 0.0
        """By steps, and by what drafts saved beyond what is kept for them."""
        self._step_s = 0.0
        """Of the last step, had it had no drafts. 0: there was none."""
        self.of_each_s = 0.0
        """What a sequence that was in all steps might have lost, less what it has lost. Only differences count."""

    def observe_step(self, seconds: float, plain_s: float) -> None:
        """Records a step that took so long, and would have taken ``plain_s`` without drafts; 0: unknown."""
        if not self._step_s:
            self._earned_s = self._for_prompts_s = _FIRST_STEPS * plain_s
        self._step_s = plain_s or self._step_s
        self._earned_s = min(self._earned_s + _SHARE * seconds, _MOST_EARNED_STEPS * self._step_s)
        self._add_for_prompts(_SHARE * seconds)
        self.of_each_s += _SHARE_OF_EACH * seconds

    def gain(self, seconds: float) -> None:
        """Drafts have saved so much, or lost it if less than 0."""
        self.of_each_s += min(0.0, seconds)
        gained_s = self._gained_s + seconds
        self._gained_s = max(0.0, min(gained_s, _MOST_GAINED_STEPS * self._step_s))
        self._earned_s += min(0.0, gained_s)
        self._add_for_prompts(max(0.0, gained_s - self._gained_s))

    @property
    def allows_drafts(self) -> bool:
        """False while drafts have lost all that they may."""
        return self._earned_s + self._gained_s > 0.0

    def takes_catch_up(self, seconds: float) -> bool:
        """True if the model may take so long for what it has not computed of a sequence."""
        return seconds <= self._gained_s + self._for_prompts_s

    def pay_catch_up(self, seconds: float) -> None:
        """The model has taken so long for it."""
        self.of_each_s -= seconds
        of_gain = min(seconds, self._gained_s)
        self._gained_s -= of_gain
        self._for_prompts_s = max(0.0, self._for_prompts_s - (seconds - of_gain))

    def ahead_s(self, num_tokens: int) -> float:
        """What a sequence may lose in advance if it may get so many tokens more."""
        return _SHARE_OF_EACH * self._step_s * min(num_tokens, _STEPS_AHEAD)

    def _add_for_prompts(self, seconds: float) -> None:
        self._for_prompts_s = min(self._for_prompts_s + seconds, _MOST_FOR_PROMPTS_STEPS * self._step_s)
