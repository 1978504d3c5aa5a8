"""Rounds of servers that answer alternately: order, medians and ratios."""

from __future__ import annotations

import pytest

from benchmarks import alternating
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload

LOAD = Workload("W", 1, 1, 10, 10)
TARGETS = [Target("ours", "http://a", "m", None), Target("theirs", "http://b", "m", None)]


def test_every_second_round_has_the_opposite_order_and_the_first_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[tuple[str, int]]()

    def once(target: Target, load: Workload, seed: int, _options: object) -> dict[str, float]:
        asked.append((target.name, seed))
        return {"errors": 0, "tokens_per_s": 10.0 + seed}

    monkeypatch.setattr(alternating, "once", once)
    rounds = alternating.measured(TARGETS, LOAD, 2)
    assert asked == [
        ("ours", -1), ("theirs", -1), ("theirs", 0), ("ours", 0), ("ours", 1), ("theirs", 1)
    ]  # fmt: skip
    assert [row["tokens_per_s"] for row in rounds["ours"]] == [10, 11]


def test_a_ratio_is_that_of_one_round() -> None:
    rounds = {
        "ours": [{"tokens_per_s": 20.0}, {"tokens_per_s": 12.0}, {"tokens_per_s": 30.0}],
        "theirs": [{"tokens_per_s": 10.0}, {"tokens_per_s": 10.0}, {"tokens_per_s": 20.0}],
    }
    (row,) = alternating.ratios(rounds)
    assert (row["median"], row["least"], row["most"]) == (1.5, 1.2, 2.0)
