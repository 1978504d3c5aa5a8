"""Means of stages over answers."""

from __future__ import annotations

import pytest

from mmserve.cli.bench.client import Record
from mmserve.cli.bench.stages import stages_ms

PICTURE = Record(
    end_s=1.0, stages_ms={"body": 10.0, "alloc": 50.0, "write": 20.0, "encode": 400.0, "decode": 500.0, "new": 2.0}
)
TEXT = Record(end_s=0.5, stages_ms={"decode": 300.0, "body": 30.0})


def test_stages_come_in_the_order_of_a_request_and_follow_one_another() -> None:
    found = stages_ms([TEXT, PICTURE])
    assert list(found) == ["body", "alloc", "write", "encode", "decode", "new", "rest"]
    assert found["alloc"] == 15, "without the writing, which is a part of it"
    assert (found["body"], found["encode"], found["decode"]) == (20, 200, 400)
    assert found["rest"] == pytest.approx((38 + 170) / 2)


def test_sums_over_pictures_may_exceed_the_whole() -> None:
    assert stages_ms([Record(end_s=0.1, stages_ms={"fetch": 150.0})]) == {"fetch": 150, "rest": 0}


def test_answers_without_stages_and_failures_do_not_count() -> None:
    failed = Record(end_s=9.0, error="cut", stages_ms={"decode": 9000.0})
    assert stages_ms([TEXT, Record(end_s=5.0), failed]) == stages_ms([TEXT])
    assert stages_ms([Record(end_s=1.0), failed]) == {}
