"""Learns how long a decoding step takes by its number of rows. Pure: no clock, no I/O.

The logarithm of a time is that of the class of its rows plus that of how slow the machine is now. Each is an average
with a variance that tells how sure it is, and a step corrects both by the shares of their variances, as a Kalman filter
does. So a well-known class that is slower than expected tells about the machine, and one that was not computed for a
while about the class.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

_LAST_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""The largest number of rows of each class; one more class has all steps with more rows."""
_NOISE = 0.05**2
"""Variances of logarithms of times: of one step,"""
_DRIFT = 0.005**2
"""of the machine from one step to the next, as contexts grow and other work comes and goes,"""
_FORGETTING = 0.001**2
"""of a class for each step of another class,"""
_WELL_KNOWN = 0.002**2
"""and at least, of a class."""
_ROWS_WEIGHT = 0.1
_OUTLIER_FACTOR = 1.5
"""A step is taken to last at most this many times as long as expected, so that one slow step changes little."""
_FEW_STEPS = 3
"""Of so many first steps of a class the fastest counts: the others may have paid for something once."""
_STEPS_TO_AGE = 64
_AGEING, _AGEING_OF_FIRST = 0.1, 0.15
"""After so many steps a class that had none of them approaches the one below by this part of the difference, so that
one which seemed too slow is tried again. What was learned from one or a few steps goes sooner."""


@dataclass
class _StepClass:
    """Moving averages of its steps."""

    rows: float
    seconds: float
    """With a slowness of 1."""
    num_steps: int = 1
    variance: float = _NOISE
    """Of the logarithm of ``seconds``."""
    is_recent: bool = True
    """A step of this class was observed since classes were last aged."""


class StepCosts:
    """Seconds of a step that only decodes, by its rows: sequences and drafted tokens."""

    def __init__(self) -> None:
        self._classes: list[_StepClass | None] = [None] * (len(_LAST_ROWS) + 1)
        self._slowness = 1.0
        """Factor of all times: the inverse of the common speed."""
        self._variance = _DRIFT
        """Of its logarithm."""
        self._num_steps = 0

    def observe(self, num_rows: int, seconds: float) -> None:
        """Records a step; 0 seconds: unknown."""
        if seconds <= 0:
            return
        self._num_steps += 1
        if self._num_steps % _STEPS_TO_AGE == 0:
            self._age()
        index = bisect_left(_LAST_ROWS, num_rows)
        known = self._classes[index]
        self._variance += _DRIFT
        for each in self._classes:
            if each is not None and each is not known:
                each.variance += _FORGETTING
        if known is None:
            self._classes[index] = _StepClass(num_rows, seconds / self._slowness)
            return
        known.num_steps += 1
        known.is_recent = True
        if known.num_steps > _FEW_STEPS:
            self._correct(known, num_rows, seconds)
        elif seconds < known.seconds * self._slowness:
            known.rows, known.seconds = num_rows, seconds / self._slowness

    def _correct(self, known: _StepClass, num_rows: int, seconds: float) -> None:
        """Corrects the averages of a class and of the machine by a step."""
        factor = min(_OUTLIER_FACTOR, seconds / self.seconds(num_rows)[0])
        known.rows += _ROWS_WEIGHT * (num_rows - known.rows)
        total = self._variance + known.variance + _NOISE
        of_machine, of_class = self._variance / total, known.variance / total
        self._slowness *= factor**of_machine
        known.seconds *= factor**of_class
        self._variance *= 1.0 - of_machine
        known.variance = max(_WELL_KNOWN, known.variance * (1.0 - of_class))

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
            if not above.is_recent:
                weight = max(_AGEING, _AGEING_OF_FIRST / above.num_steps)
                part = weight * max(0.0, 1.0 - below.seconds / above.seconds)
                above.seconds *= 1.0 - part
                above.variance = (sqrt(above.variance) + part) ** 2
            above.is_recent = False
