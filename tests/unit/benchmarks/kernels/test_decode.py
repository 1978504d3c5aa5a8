"""How ``benchmarks.kernels.decode`` groups its rounds."""

from __future__ import annotations

import pytest

from benchmarks.kernels.decode import Round, grouped

GB = 1_000_000_000


def test_rounds_are_grouped_by_the_rate_of_their_reads() -> None:
    slow, fast = Round(0.04, (1 / 30, 1 / 31)), Round(0.02, (1 / 60, 1 / 59))
    rows = grouped([fast, slow, fast], GB)
    assert [row["rounds"] for row in rows] == [1, 2]
    assert [row["step ms"] for row in rows] == [40, 20]
    assert rows[0]["reads GB/s"] == pytest.approx(30.5, abs=0.1)
    assert rows[1]["share of the read rate"] == pytest.approx(1 / 60 / 0.02, rel=0.02)


def test_a_round_whose_reads_differ_does_not_count() -> None:
    assert grouped([Round(0.04, (1 / 30, 1 / 60)), Round(0.02, (1 / 60, 1 / 60))], GB)[0]["rounds"] == 1
    assert grouped([Round(0.04, (1 / 30, 1 / 60))], GB) == []
