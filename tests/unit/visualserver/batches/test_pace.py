"""A vision tower on a rank's card: how much longer its slices make the rank's steps, on a card that is calculated."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mmserve.visualserver.batches.pace import Pace

LAYERS = 24
PICTURE = 1_000_000
"""Bytes of its pixels."""
CASES = [
    (step_ms, layer_ms, share)
    for step_ms in (2, 6, 12, 40)
    for layer_ms in (0.02, 0.1, 0.4)
    for share in (0.1, 0.3)
    if layer_ms <= share * step_ms / (1 + share)
]
"""One layer of one picture fits a slice."""


class Card:
    """It computes for one process at a time: a rank's steps one after the other, but for the tower's layers."""

    def __init__(self, step_s: float) -> None:
        self.now_s = self.computed_s = 0.0
        self._step_s, self._begun_s = step_s, 0.0
        self.steps: list[float] = []

    def tower(self, seconds: float) -> None:
        self.now_s += seconds
        self.computed_s += seconds

    def rest(self, seconds: float) -> None:
        """The rank computes meanwhile."""
        end_s = self.now_s + seconds
        while (done_s := self._left_s()) <= end_s - self.now_s:
            self.now_s += done_s
            self.steps.append(self.now_s - self._begun_s)
            self._begun_s, self._stolen_s = self.now_s, self.computed_s
        self.now_s = end_s

    _stolen_s = 0.0

    def _left_s(self) -> float:
        """Of the rank's step."""
        worked_s = self.now_s - self._begun_s - (self.computed_s - self._stolen_s)
        return self._step_s - worked_s


def flood(pace: Pace, step_s: float, layer_s: float, batch: int = 16, calls: int = 30) -> Card:
    """Calls of a tower whose layers take ``layer_s`` for each picture."""
    card = Card(step_s)
    card.rest(3.5 * step_s)
    for _ in range(calls):
        count = pace.num_pictures([PICTURE] * batch, card.steps[-1])
        for layer in range(LAYERS):
            card.tower(count * layer_s)
            rest_s = pace.rest_s(count * layer_s, count * PICTURE, min(card.steps[-8:]), last=layer == LAYERS - 1)
            if rest_s:
                card.rest(rest_s)
    return card


@pytest.mark.parametrize(("step_ms", "layer_ms", "share"), CASES)
def test_no_step_is_longer_by_more_than_the_share(step_ms: float, layer_ms: float, share: float) -> None:
    card = flood(Pace(share), step_ms / 1e3, layer_ms / 1e3)
    assert max(card.steps) <= (1 + share) * step_ms / 1e3 * 1.0001
    assert len(card.steps) > 20


@pytest.mark.parametrize(("step_ms", "layer_ms"), [(6, 0.1), (12, 0.4), (40, 0.1)])
def test_the_tower_uses_most_of_its_share(step_ms: float, layer_ms: float) -> None:
    card = flood(Pace(0.3), step_ms / 1e3, layer_ms / 1e3)
    assert card.computed_s > 0.12 * card.now_s, "at most 0.23"


def test_a_layer_that_is_longer_than_a_slice_has_longer_rests() -> None:
    """Then a step in some is longer, and the mean is still within the share."""
    card = flood(Pace(0.3), 0.002, 0.003)
    assert sum(card.steps) / len(card.steps) <= 1.31 * 0.002


@pytest.mark.parametrize(
    ("nbytes", "step_s", "count"),
    [([10, 10, 10, 10], 0.0131, 3), ([50, 1], 0.0131, 1), ([1] * 5, 0.0131, 5), ([10, 10], 0.0, 1)],
)
def test_a_call_gets_the_pictures_whose_layer_fits_a_slice(nbytes: Sequence[int], step_s: float, count: int) -> None:
    pace = Pace(0.3)
    assert pace.num_pictures(nbytes, step_s) == 1, "before anything was measured"
    pace.rest_s(0.001, 10, 1.0)
    assert pace.num_pictures(nbytes, step_s) == count


def test_a_suspended_tower_does_not_rest_for_minutes() -> None:
    assert Pace(0.01).rest_s(60.0, PICTURE, 0.02) == 1.0
