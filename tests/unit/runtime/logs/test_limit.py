"""A flood of warnings from one line of code is cut, and counted."""

from __future__ import annotations

import logging

from mmserve.runtime.logs.limit import RepeatLimit


class _Log:
    def __init__(self) -> None:
        self.now_s = 0.0
        self._limit = RepeatLimit(burst=3, per_s=1.0, clock=lambda: self.now_s)

    def passed(self, line: int, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("mmserve", level, "channel.py", line, "skipped %d bytes", (line,), None)
        return record.getMessage() if self._limit.filter(record) else None


def test_a_flood_is_cut_and_the_next_line_says_by_how_much() -> None:
    log = _Log()
    assert [log.passed(1) for _ in range(5)] == ["skipped 1 bytes"] * 3 + [None, None]
    assert log.passed(2) == "skipped 2 bytes", "other places go on"
    log.now_s = 1.0
    assert log.passed(1) == "skipped 1 bytes (and 2 like this, left out)"
    assert log.passed(1) is None
    log.now_s = 60.0
    assert [log.passed(1) is not None for _ in range(4)] == [True, True, True, False]


def test_information_is_never_cut() -> None:
    log = _Log()
    assert None not in [log.passed(1, logging.INFO) for _ in range(100)]
