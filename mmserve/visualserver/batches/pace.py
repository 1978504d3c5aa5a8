"""How much of a card a vision tower takes while ranks compute on it. Pure: no clock, no torch.

A card computes for one process at a time, so a step of a rank lasts longer by whatever the tower computes meanwhile.
The tower therefore computes slices that make a step longer by ``share`` of itself, and rests for a step's time after
each, so that no step meets two of them. A slice is some of its layers; where a single layer takes longer, a call gets
fewer pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

_NEWEST = 0.25
"""Weight of the newest measurement in the average."""
_REST_STEPS = 1.1
"""Of a step's time, so that the next slice meets another step."""

_MOST_REST_S = 1.0
"""A layer that seems to take seconds is rather a process that was suspended."""


class Pace:
    """``share``: of a step's time, that a slice may add to it. Steps that are measured have met slices already."""

    def __init__(self, share: float) -> None:
        self._share = share / (1 + share)
        self._layer_s_per_byte = 0.0
        """Of one layer, for each byte of pixels."""
        self._used_s = 0.0
        """Of the slice that is being computed."""

    def num_pictures(self, nbytes: Sequence[int], step_s: float) -> int:
        """How many of the next pictures, with so many bytes of pixels each, a call of the tower takes: at least one.

        ``step_s``: of the ranks' steps.
        """
        most_s = self._share * step_s
        if not self._layer_s_per_byte:
            return 1
        return max(1, sum(total * self._layer_s_per_byte <= most_s for total in accumulate(nbytes)))

    def rest_s(self, layer_s: float, nbytes: int, step_s: float, *, last: bool = False) -> float:
        """How long the tower rests behind a layer that took so long, for pictures of so many bytes in all.

        0 as long as another layer fits the slice. ``last``: there is no other layer.
        """
        measured = layer_s / max(1, nbytes)
        self._layer_s_per_byte += (measured - self._layer_s_per_byte) * (_NEWEST if self._layer_s_per_byte else 1.0)
        return self._rest_s(layer_s, step_s, last=last)

    def rest_before_layers_s(self, seconds: float, step_s: float) -> float:
        """As ``rest_s``, behind work of so long for one picture that no layer computes: resizing it."""
        return self._rest_s(seconds, step_s, last=False)

    def _rest_s(self, seconds: float, step_s: float, *, last: bool) -> float:
        self._used_s += seconds
        if not last and self._used_s + seconds <= self._share * step_s:
            return 0.0
        used_s, self._used_s = self._used_s, 0.0
        return min(max(_REST_STEPS * step_s, used_s / self._share - used_s), _MOST_REST_S)
