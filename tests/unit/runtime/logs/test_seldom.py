from __future__ import annotations

from mmserve.runtime.logs.seldom import Seldom


def test_a_line_is_due_once_a_minute_and_few_are_remembered() -> None:
    now_s = 0.0
    seldom = Seldom(lambda: now_s)
    assert [seldom.is_due(line) for line in ("a", "a", "b")] == [True, False, True]
    now_s = 59.0
    assert not seldom.is_due("a")
    now_s = 60.0
    assert seldom.is_due("a")
    assert not seldom.is_due("a")
    for number in range(1000):
        seldom.is_due(f"{number}")
    assert seldom.is_due("a"), "forgotten"
