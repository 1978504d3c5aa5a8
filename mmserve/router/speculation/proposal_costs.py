"""Learns how long the draft model takes, from what was measured at start on. Pure: no clock, no I/O.

A draft of n tokens takes n passes, each for one token of every sequence that has one. The first pass also computes what
the draft model does not have yet of the sequences: many rows where a prompt is new to it.
"""

from __future__ import annotations

from mmserve.messages.step import DraftTimes
from mmserve.router.speculation.step_costs import StepCosts

_ROWS_OF_A_PASS = 2
"""A first pass of at most so many tokens a sequence is one like the others: the last token, and the last one of a draft
that was right."""
_WEIGHT, _MANY_ROWS = 0.2, 64
"""What is learned of the time of a token. A pass with fewer rows takes as long as one with few of them."""


class ProposalCosts:
    """Seconds of passes by their number of sequences, and of a token in a long first pass."""

    def __init__(self, measured: DraftTimes) -> None:
        self._passes = StepCosts()
        self._passes.observe(1, measured.pass_s)
        self.row_s = measured.row_s
        """Of a token that the draft model still has to compute. 0: unknown."""

    def observe(self, num_sequences: int, num_passes: int, num_rows: int, seconds: float) -> float:
        """Records the drafts of a step. ``num_rows``: of the first pass; 0: it failed. 0 seconds: unknown.

        Returns the seconds of a long first pass, or of one that failed.
        """
        if seconds <= 0 or not num_rows:
            return seconds
        if num_rows <= _ROWS_OF_A_PASS * num_sequences:
            self._passes.observe(num_sequences, seconds / num_passes)
            return 0.0
        first_s = max(0.0, seconds - (num_passes - 1) * self.pass_seconds(num_sequences)[-1])
        row_s = first_s / num_rows
        if not self.row_s:
            self.row_s = row_s
        elif num_rows >= _MANY_ROWS:
            self.row_s += _WEIGHT * (row_s - self.row_s)
        return first_s

    def pass_seconds(self, num_sequences: int) -> list[float]:
        """Expected seconds of a pass with 1 to ``num_sequences`` sequences; 0 while nothing is known."""
        return self._passes.seconds(1, num_sequences - 1) or [0.0] * num_sequences
