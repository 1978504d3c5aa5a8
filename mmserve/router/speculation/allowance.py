"""Bounds what drafts of a model may lose. Pure: no clock, no I/O.

How often such drafts are right is learned from drafts alone, and each that is wrong costs more than a step, so a few
wrong ones are 3 % of a short answer. A part of the time that decoding takes may be lost, and what right drafts save may
be lost again.
"""

from __future__ import annotations

_SHARE, _MOST_EARNED_STEPS = 0.012, 4.0
"""Of the time of steps, and the time of so many steps at most."""
_FIRST_STEPS = 0.5
"""So many steps' time may be lost before anything was gained."""
_PROVEN_STEPS, _MOST_STEPS = 0.5, 8.0
"""A model that has gained the time of so many steps is worth its computation of a prompt. More is not kept, so that a
model that was good for other texts does not lose it all."""


class Allowance:
    """Seconds that drafts may still lose."""

    def __init__(self) -> None:
        self._earned_s = self._gained_s = 0.0
        """By steps, and by drafts. What drafts lose beyond the latter is taken from the former."""
        self._has_lost = False
        self._step_s = 0.0
        """Of the last step, had it had no drafts. 0: there was none."""

    def observe_step(self, seconds: float, plain_s: float) -> None:
        """Records a step that took so long, and would have taken ``plain_s`` without drafts; 0: unknown."""
        if not self._step_s:
            self._earned_s += _FIRST_STEPS * plain_s
        self._step_s = plain_s or self._step_s
        self._earned_s = min(self._earned_s + _SHARE * seconds, _MOST_EARNED_STEPS * self._step_s)

    def gain(self, seconds: float) -> None:
        """Drafts have saved so much, or lost it if less than 0."""
        self._gained_s = min(self._gained_s + seconds, _MOST_STEPS * self._step_s)
        if self._gained_s < 0.0:  # it is paid with what was earned
            self._earned_s, self._gained_s = self._earned_s + self._gained_s, 0.0
            self._has_lost = True

    @property
    def allows_drafts(self) -> bool:
        """False while drafts have lost all that they may. The first draft, which tells what one costs, is allowed."""
        return self._earned_s + self._gained_s > 0.0

    def takes_catch_up(self, seconds: float) -> bool:
        """True if the model may take so long for what it has not computed of a sequence. It is lost if drafts have lost
        before and have not proven to gain since."""
        if not self._has_lost or self._gained_s >= _PROVEN_STEPS * self._step_s:
            return True
        if seconds > self._earned_s:
            return False
        self._earned_s -= seconds
        return True
