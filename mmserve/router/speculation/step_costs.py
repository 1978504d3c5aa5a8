"""Learns how long a decoding step takes by its number of rows. Pure: no clock, no I/O."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

_LAST_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""The largest number of rows of each class; one more class has all steps with more rows."""
_WEIGHT = 0.4
"""Of a step whose class is that of the step before: its time tells how fast the machine is. Longer contexts, and other
work on the machine, make steps of all classes slower. A step of another class also tells how the two compare: half of
the weight goes to its class. So times of classes are compared at the same speed."""
_OUTLIER_FACTOR = 1.5
"""A step is taken to last at most this many times as long as expected, so that one slow step changes little."""
_FEW_STEPS = 3
"""Of so many first steps of a class the fastest counts: the others may have paid for something once."""
_STEPS_TO_AGE = 64
_AGEING, _AGEING_OF_FIRST = 0.05, 0.1
"""After so many steps each class approaches the one below by this part of the difference, so that one which seemed too
slow is tried again. What was learned from one or a few steps goes sooner."""


@dataclass
class _StepClass:
    """Moving averages of its steps."""

    rows: float
    seconds: float
    """With a slowness of 1."""
    num_steps: int = 1


class StepCosts:
    """Seconds of a step that only decodes, by its rows: sequences and drafted tokens."""

    def __init__(self) -> None:
        self._classes: list[_StepClass | None] = [None] * (len(_LAST_ROWS) + 1)
        self._slowness = 1.0
        """Factor of all times: the inverse of the common speed."""
        self._num_steps = 0
        self._last_index = -1

    def observe(self, num_rows: int, seconds: float) -> None:
        """Records a step; 0 seconds: unknown."""
        if seconds <= 0:
            return
        self._num_steps += 1
        if self._num_steps % _STEPS_TO_AGE == 0:
            self._age()
        index = bisect_left(_LAST_ROWS, num_rows)
        known, is_same, self._last_index = self._classes[index], index == self._last_index, index
        if known is None:
            self._classes[index] = _StepClass(num_rows, seconds / self._slowness)
            return
        known.num_steps += 1
        if known.num_steps <= _FEW_STEPS:
            if seconds < known.seconds * self._slowness:
                known.rows, known.seconds = num_rows, seconds / self._slowness
            return
        factor = min(_OUTLIER_FACTOR, seconds / self.seconds(num_rows)[0])
        known.rows += _WEIGHT / 4 * (num_rows - known.rows)
        if is_same:
            self._slowness *= factor**_WEIGHT
        else:
            self._slowness *= factor ** (_WEIGHT / 2)
            known.seconds *= factor ** (_WEIGHT / 2)

    def seconds(self, num_rows: int, num_more: int = 0) -> list[float]:
        """Expected seconds of steps with ``num_rows`` to ``num_rows + num_more`` rows, between those of the classes
        around. Empty: nothing is known.

        More rows than were ever seen are expected to take as long as the most that were, so that they are tried.
        """
        known = [each for each in self._classes if each is not None]
        if not known:
            return []
        found, index, last = [], 0, len(known) - 1
        for rows in range(num_rows, num_rows + num_more + 1):
            while index < last and known[index + 1].rows <= rows:
                index += 1
            below, above = known[index], known[min(index + 1, last)]
            share = (rows - below.rows) / (above.rows - below.rows) if below.rows < rows and below is not above else 0.0
            found.append((below.seconds + share * (above.seconds - below.seconds)) * self._slowness)
        return found

    def _age(self) -> None:
        known = [each for each in self._classes if each is not None]
        for below, above in reversed(list(pairwise(known))):
            weight = max(_AGEING, _AGEING_OF_FIRST / above.num_steps)
            above.seconds -= weight * max(0.0, above.seconds - below.seconds)
